# --- peers of --ask; each skips with a reason when it is not installed ---
.PHONY: ask-peers test-ask bench-ask

ask-peers: .peers/llmock .peers/vendor

.peers/llmock:
	$(PYTHON) -m venv $@ && $@/bin/pip install --quiet llmock==0.2.2

.peers/vendor:
	$(PYTHON) -m venv $@ && $@/bin/pip install --quiet openai anthropic google-genai pytest hypothesis

test-ask: ask-peers
	$(PYTHON) -m pytest -q tests/test_http.py tests/test_ask.py tests/test_wire_formats.py tests/test_peer_llmock.py
	PYTHONPATH=.:tests .peers/vendor/bin/python -m pytest -q tests/test_wire_formats.py -k types

bench-ask: .peers/vendor
	PYTHONPATH=. .peers/vendor/bin/python tests/bench_ask.py
