# Everything runs in .venv; what is heavy (the engine's environment, the model) lies in the cache:
# $XDG_CACHE_HOME/dflashq or ~/.cache/dflashq. See the README.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KEEP ?=

.PHONY: help setup check test browser acceptance bench chaos engine demo demo-down format clean

help:
	@echo "make demo   the whole job on this machine, with a real engine on the CPU (KEEP=1 leaves it up)"
	@echo "make test   all tests, real servers included"
	@echo "make chaos  a fleet under random faults: MINUTES=10, or KILLS=200; SEED=0"
	@echo "make bench  the numbers to reach, with goal and verdict (half an hour)"
	@echo "make acceptance  the trainers themselves read and train on an exported run"
	@echo "make browser  the monitor in a real browser (apt-get install chromium chromium-driver, npm)"
	@echo "make check  format, lint, types, layers, unit tests"

setup: $(STAMP)

$(STAMP): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dflashq needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "Python has no venv here: apt-get install python3-venv, then make again"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 tests/unit

engine: setup
	$(BIN)/python -m dflashq.embedded.prepare

# Most of these wait for servers and processes, so more of them run at once than there are cores.
test: check engine
	$(BIN)/pytest -n 4 tests/integration -m "not sglang"
	$(BIN)/pytest -n 2 tests/fleet tests/chaos -m "not sglang"
	$(BIN)/pytest tests/integration tests/fleet -m sglang

AXE := build/axe/node_modules/axe-core/axe.min.js

$(AXE):
	npm install --silent --no-audit --no-fund --prefix build/axe axe-core@4.14.1

browser: setup $(AXE)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { echo "no browser here: apt-get install chromium chromium-driver"; exit 1; }
	$(BIN)/pytest tests/browser
	@echo "screenshots: build/screens/"

MINUTES ?= 10
KILLS ?= 0
SEED ?= 0

chaos: setup
	$(BIN)/python -m tests.chaos.run --minutes $(MINUTES) --kills $(KILLS) --seed $(SEED)

bench: engine
	$(BIN)/python -m tests.benchmarks

acceptance: engine
	$(BIN)/python -m tests.acceptance

demo: setup
	$(BIN)/python scripts/demo.py $(if $(KEEP),--keep)

demo-down: setup
	$(BIN)/python scripts/demo.py --down

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build demo-output *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
