# Set-up is part of every target and is skipped when nothing changed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-installed
DEV_STAMP := $(VENV)/.dev-installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install -c constraints.txt

.PHONY: help run test check format train clean

help:  ## Say what the targets do
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

run: $(RUN_STAMP)  ## Set up, then sweep K on the embedded pairs (about 4 minutes)
	$(BIN)/specbench sweep-k demo/draft demo/poor --budget 3m

test: $(DEV_STAMP)  ## Set up, then run every test that needs no GPU
	$(BIN)/python -m pytest -n auto -m "not gpu"

check: $(DEV_STAMP)  ## Format, lint and types; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(DEV_STAMP)  ## Format and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

train: $(RUN_STAMP)  ## Train the embedded models again into build/demo
	$(BIN)/python -m specbench.demo.train --out build/demo

clean:  ## Remove the virtual environment and build products
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $(RUN_STAMP) $@
