# What a contributor runs. `make` alone lists it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-stamp

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test check docs bench faults clean

help:
	@echo "make setup    the virtual environment $(VENV), with this package and the tools"
	@echo "make demo     a small shop: a flow, a crash and its recovery, shown live"
	@echo "make test     check, then every test"
	@echo "make check    ruff, mypy and the import rules"
	@echo "make docs     the documentation as a site, in site/"
	@echo "make bench    our numbers beside other engines', measured here"
	@echo "make faults   the fault suite at full length"
	@echo "make clean    removes what the others made"

setup: $(STAMP)
	@:

# The stamp is as old as the last install: with an unchanged pyproject.toml there is nothing to do.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys' 2>/dev/null \
	  || { echo "Python was not found as '$(PYTHON)': install Python 3.11 or newer, or run make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Penstock needs Python 3.11 or newer, '$(PYTHON)' is $$($(PYTHON) -V 2>&1): run make PYTHON=python3.12, say"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "'$(PYTHON)' comes without venv: install it (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@echo "Setting up $(VENV): the package and the development tools (a minute the first time) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

demo: setup
	@$(BIN)/python examples/shop/demo.py

test: check
	@$(BIN)/python -m pytest -n 3

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

docs: setup
	@$(BIN)/python docs/generate_cli.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

bench: setup
	@$(BIN)/python -m benchmarks $(ARGS)

faults: setup
	@PENSTOCK_FAULTS=full $(BIN)/pytest tests/faults

clean:
	rm -rf $(VENV) benchmarks/.peers-venv benchmarks/contenders/node/node_modules benchmarks/results dist build site
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
