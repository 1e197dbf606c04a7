# w4d3_tools_mcp: every target works on a bare clone; the product itself needs nothing installed.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
MAIN   := w4d3_tools_mcp.py

.DEFAULT_GOAL := help
.PHONY: help test test-core check demo lint golden map peers interop bench bench-mcp bench-router bench-notes bench-ask clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/ready: tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check -r tests/requirements.txt
	@touch $@

test: $(VENV)/ready ## set up .venv and run every test
	$(PY) -m pytest

# Without the files that start hundreds of processes, and without the numpy script.
APART := command_line ask readme mcp_doctor mcp_peers peer_llmock checks checks_product

test-core: $(VENV)/ready ## the tests of the sections and the transcripts, in about a minute
	$(PY) -m pytest $(APART:%=--ignore=tests/test_%.py)

demo: ## the offline demos
	@$(PYTHON) $(MAIN) --demo

check: $(VENV)/ready ## the lecture's seven groups of numbers (numpy)
	$(PY) w4day3_checks.py

lint: $(VENV)/ready ## ruff and the examples in docstrings
	$(PY) -m ruff check w4d3_tools_mcp.py w4day3_checks.py tests
	$(PY) -m doctest $(MAIN)

golden: $(VENV)/ready ## rewrite the transcripts in tests/golden from what the commands print now
	$(PY) tests/golden.py

map: ## the sections of the product with their line numbers
	@grep -n '^# §' $(MAIN)

# Official clients and independent fakes, each in a folder of its own; only tests use them.
PIP_PEERS := v1 v2 fm llmock vendor
v1_PACKAGES := mcp==1.30.0
v2_PACKAGES := mcp==2.3.0
fm_PACKAGES := fastmcp==4.1.6
llmock_PACKAGES := llmock==0.2.2
vendor_PACKAGES := openai anthropic google-genai pytest hypothesis
NPM_PEERS := ts1 ts2 old104 old1115 old1133 insp
ts1_PACKAGES := @modelcontextprotocol/sdk@1.32.2 zod
ts2_PACKAGES := @modelcontextprotocol/client@2.4.0
old104_PACKAGES := @modelcontextprotocol/sdk@1.0.4
old1115_PACKAGES := @modelcontextprotocol/sdk@1.11.5
old1133_PACKAGES := @modelcontextprotocol/sdk@1.13.3
insp_PACKAGES := @modelcontextprotocol/inspector@2.12.0

$(PIP_PEERS:%=.peers/%/ready):
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install -q --disable-pip-version-check $($(notdir $(@D))_PACKAGES)
	@touch $@

$(NPM_PEERS:%=.peers/%/ready):
	mkdir -p $(@D)
	cd $(@D) && npm init -y >/dev/null && \
	npm install --silent --no-audit --no-fund --ignore-scripts $($(notdir $(@D))_PACKAGES)
	@touch $@

peers: $(PIP_PEERS:%=.peers/%/ready) $(NPM_PEERS:%=.peers/%/ready) ## set up official clients in .peers

interop: $(VENV)/ready ## our server, client and requests against what make peers has set up
	$(PY) -m pytest -rs tests/test_mcp_peers.py tests/test_peer_llmock.py
	@if [ -e .peers/vendor/ready ]; then \
	PYTHONPATH=.:tests .peers/vendor/bin/python -m pytest tests/test_wire_messages.py -k types; \
	else echo "vendors' types are not installed: run make peers"; fi

bench: $(VENV)/ready ## speed as ratios to other libraries, measured in one process
	$(PY) -m pip install -q --disable-pip-version-check -r tests/requirements-bench.txt
	$(PY) tests/bench.py
	@if [ -e .peers/fm/ready ]; then .peers/fm/bin/python tests/bench.py fastmcp; \
	else echo "fastmcp is not there (make peers): its row is left out"; fi

bench-mcp: ## the MCP server beside a bare loop
	$(PYTHON) tests/bench_mcp.py

bench-ask: .peers/vendor/ready ## --ask beside the openai package
	PYTHONPATH=. .peers/vendor/bin/python tests/bench_ask.py

bench-router: $(VENV)/ready ## DATA=folder: how well tools are found, beside other rankers
	-@$(PY) -m pip install -q --disable-pip-version-check rank_bm25 bm25s
	PYTHONPATH=. $(PY) tests/bench_router.py $(DATA)

bench-notes: ## DATA=folder of Markdown: first index, warm start, queries, memory
	PYTHONPATH=. $(PYTHON) tests/bench_notes.py $(DATA) tests/data/notes_queries.json

clean: ## remove everything that make has made
	rm -rf $(VENV) .peers .pytest_cache .hypothesis .ruff_cache __pycache__ tests/__pycache__
