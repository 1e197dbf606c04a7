# Official MCP clients, each in its own folder, for tests/test_mcp_peers.py.
PEERS := .peers
PEER_PYTHON ?= python3

$(PEERS)/v2:
	$(PEER_PYTHON) -m venv $@ && $@/bin/pip install -q mcp==2.3.0
$(PEERS)/v1:
	$(PEER_PYTHON) -m venv $@ && $@/bin/pip install -q mcp==1.30.0
$(PEERS)/fm:
	$(PEER_PYTHON) -m venv $@ && $@/bin/pip install -q fastmcp==4.1.6

NPM_PEERS := ts1 ts2 old104 old1115 old1133 insp
ts1_PACKAGES := @modelcontextprotocol/sdk@1.32.2 zod
ts2_PACKAGES := @modelcontextprotocol/client@2.4.0
old104_PACKAGES := @modelcontextprotocol/sdk@1.0.4
old1115_PACKAGES := @modelcontextprotocol/sdk@1.11.5
old1133_PACKAGES := @modelcontextprotocol/sdk@1.13.3
insp_PACKAGES := @modelcontextprotocol/inspector@2.12.0

$(NPM_PEERS:%=$(PEERS)/%):
	mkdir -p $@ && cd $@ && npm init -y >/dev/null && \
	npm install --silent --no-audit --no-fund --ignore-scripts $($(@F)_PACKAGES)

.PHONY: peers interop
peers: $(PEERS)/v2 $(PEERS)/v1 $(PEERS)/fm $(NPM_PEERS:%=$(PEERS)/%)
interop: peers
	$(PEER_PYTHON) -m pytest -q tests/test_mcp_peers.py
