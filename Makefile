# w4d3_tools_mcp: every target works on a bare clone; the product itself needs nothing installed.
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
MAIN   := w4d3_tools_mcp.py

.DEFAULT_GOAL := help
.PHONY: help test check demo lint golden map bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/ready: tests/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install -q --disable-pip-version-check -r tests/requirements.txt
	@touch $@

test: $(VENV)/ready ## set up .venv and run every test
	$(PY) -m pytest

demo: ## the offline demos
	@$(PYTHON) $(MAIN) --demo

check: $(VENV)/ready ## the lecture's seven groups of numbers (numpy)
	$(PY) w4day3_checks.py

lint: $(VENV)/ready ## ruff and the examples in docstrings
	$(PY) -m ruff check .
	$(PY) -m doctest $(MAIN)

golden: $(VENV)/ready ## rewrite the transcripts in tests/golden from what the commands print now
	$(PY) tests/golden.py

map: ## the sections of the product with their line numbers
	@grep -n '^# §' $(MAIN)

bench: $(VENV)/ready ## speed as ratios to other libraries, measured in one process
	$(PY) -m pip install -q --disable-pip-version-check -r tests/requirements-bench.txt
	$(PY) tests/bench.py

clean: ## remove everything that make has made
	rm -rf $(VENV) .peers .pytest_cache .hypothesis .ruff_cache __pycache__ tests/__pycache__
