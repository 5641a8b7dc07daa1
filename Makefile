# What a contributor runs. `make` alone lists it.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# The tests that are longer with PENSTOCK_FAULTS=full, and those of faults of runners.
FAULTS := tests/faults tests/bounds tests/records tests/app/test_clock_skew.py tests/app/test_import_mutants.py \
  tests/cli/test_hostile_options.py tests/http_api/test_hostile_bodies.py tests/contracts/test_server_clock.py \
  tests/dags/test_dag_kills.py tests/dags/test_runs.py tests/dags/test_built_in_nodes.py \
  tests/entities/test_kills.py tests/interop/test_pgboss.py \
  tests/messaging/test_message_kills.py tests/messaging/test_kafka_rebalances.py \
  tests/runners/test_killed_workers.py tests/runners/test_process_faults.py tests/runners/test_node_faults.py \
  tests/runners/test_runner_mutants.py tests/schedules/test_daylight_saving.py

# The tools are compiled when they are first used: most of their modules never are, and compiling takes half a minute.
# Stamps are as old as the last install: with unchanged pyproject.toml and lock files there is nothing to do.
PACKAGE := $(VENV)/.package-stamp
TOOLS   := $(VENV)/.setup-stamp

UV       := uv==0.13.8
COMPILE  := $(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate --no-header pyproject.toml requirements/build.in
NODE_DIRS := console tests/interop tests/interop/pgboss benchmarks/contenders/node

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of Python processes: without compiled files each of them compiles the package.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo console test check spec coverage docs bench faults lock clean

help:
	@echo "make setup    the virtual environment $(VENV), with this package and the tools"
	@echo "make demo     a small shop: a flow, a crash and its recovery, shown live; needs no tools"
	@echo "make console  the web console, for penstock dev and serve of this checkout"
	@echo "make test     check and every test, on six processes; about fifteen minutes on two cores"
	@echo "make check    ruff, mypy and the import rules"
	@echo "make spec     which items of the specifications a test proves, and which have no test yet"
	@echo "make coverage the share of lines, branches and functions that the tests run; ARGS=tests/core for a part of them"
	@echo "make docs     the documentation as a site, in site/"
	@echo "make bench    benchmarks of Penstock and other engines on this machine"
	@echo "make faults   the fault suite at full length; two hours and more"
	@echo "make lock     newer versions of everything that is pinned: requirements/*.lock, package-lock.json"
	@echo "make clean    remove everything that the other targets created"

setup: $(TOOLS)
	@:

$(PACKAGE): pyproject.toml requirements/package.lock
	@$(PYTHON) -c 'import sys' 2>/dev/null \
	  || { echo "Python was not found as '$(PYTHON)': install Python 3.11 or newer, or run make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Penstock needs Python 3.11 or newer, '$(PYTHON)' is $$($(PYTHON) -V 2>&1): for example, run make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "'$(PYTHON)' comes without venv: install it (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@echo "Setting up $(VENV) with the package ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --require-hashes -r requirements/package.lock
	@$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@touch $@

$(TOOLS): $(PACKAGE) requirements/dev.lock
	@echo "Adding the development tools (a minute or two the first time) ..."
	@$(BIN)/python -m pip install -q --require-hashes --no-compile -r requirements/dev.lock
	@touch $@

demo: $(PACKAGE)
	@$(BIN)/python examples/shop/demo.py

console: setup
	@$(BIN)/python console/build.py

# mypy and the import rules run beside the first tests. What they find is printed at once, and once more at the end.
# A failed test runs once more alone: on a busy machine a browser or a killed process may be late. Both results are printed.
test: setup
	@$(BIN)/ruff check .
	@mkdir -p .cache
	@{ $(BIN)/mypy && $(BIN)/lint-imports; } >.cache/check.log 2>&1 || { cat .cache/check.log; exit 1; } & check=$$!; \
	  $(BIN)/python -m pytest -n 6; status=$$?; \
	  if [ $$status = 1 ]; then echo "The tests that failed run once more, one after the other:"; \
	    $(BIN)/python -m pytest --last-failed --last-failed-no-failures=none --maxfail=5 -v; status=$$?; fi; \
	  wait $$check || status=$$?; cat .cache/check.log; exit $$status

check: setup
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

spec: setup
	@$(BIN)/python tools/spec_report.py $(ARGS)

# The settings are in pyproject.toml. It takes about twice as long as the tests, and fails below the goals of tools/coverage_report.py;
# ARGS=tests/core measures a part of the tests, without goals. A failed test does not lose the report: it is printed, and make fails after it.
coverage: setup
	@rm -rf .cache/coverage && mkdir -p .cache/coverage
	@$(BIN)/python -m coverage run -m pytest $(or $(ARGS),-n 3); status=$$?; \
	  $(BIN)/python -m coverage combine -q && $(BIN)/python -m coverage json -q && $(BIN)/python tools/coverage_report.py $(if $(ARGS),,--enforce) && exit $$status

docs: setup
	@$(BIN)/python tools/generate_cli.py
	@$(BIN)/python tools/generate_reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

bench: setup
	@$(BIN)/python -m benchmarks $(ARGS)

faults: setup
	@PENSTOCK_FAULTS=full $(BIN)/python -m pytest -n 3 $(FAULTS)

# Nothing else changes a pinned version. The files hold versions and hashes; where to download from is pip's and npm's setting.
lock: setup
	@$(BIN)/python -m pip install -q $(UV)
	@$(COMPILE) --extra http --extra node -o requirements/package.lock
	@$(COMPILE) --extra dev -c requirements/package.lock -o requirements/dev.lock
	@$(BIN)/python tests/node_programs.py $(NODE_DIRS)
	@echo "Look at the changes with git diff, then run make test."

clean:
	rm -rf $(VENV) .cache console/node_modules src/penstock/http/console_files benchmarks/.peers-venv benchmarks/contenders/node/node_modules benchmarks/results dist build site
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
