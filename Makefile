# Everything runs in .venv; what is heavy (the engine's environment, the model) lies in the cache:
# $XDG_CACHE_HOME/dflashq or ~/.cache/dflashq. See the README.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KEEP ?=

.PHONY: help setup check test engine demo demo-down format clean

help:
	@echo "make demo   the whole job on this machine, with a real engine on the CPU (KEEP=1 leaves it up)"
	@echo "make test   all tests, real servers included"
	@echo "make check  format, lint, types, layers, unit tests"

setup: $(STAMP)

$(STAMP): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dflashq needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python has no venv here: apt-get install python3-venv, then make again"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

# Most tests wait for servers, so more of them run at once than there are cores.
check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 4 tests/unit

engine: setup
	$(BIN)/python -m dflashq.embedded.prepare

test: check engine
	$(BIN)/pytest -n 4 tests/ledger tests/embedded -m "not sglang"
	$(BIN)/pytest tests/engine tests/fleet -m "not sglang"
	$(BIN)/pytest tests -m sglang

demo: setup
	$(BIN)/python scripts/demo.py $(if $(KEEP),--keep)

demo-down: setup
	$(BIN)/python scripts/demo.py --down

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build demo-output *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
