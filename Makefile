# Set-up is part of every target and is skipped when nothing changed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-installed
DEV_STAMP := $(VENV)/.dev-installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install -c constraints.txt

# Where make test-engines keeps real engines.
export ENGINES ?= $(HOME)/.cache/specbench-engines

# Compiled files are kept, or every process of the tests compiles all of them again.
export PYTHONDONTWRITEBYTECODE :=

# Neighbouring tests mostly share a worker, so what a file shares is seldom made twice. Some wait for
# servers and processes: one worker more than there are cores.
SPREAD = -n $(shell $(PYTHON) -c 'import os; print(1 + (os.cpu_count() or 1))') --dist worksteal

WHEELS := build/wheels
SITE := build/gpu-site
GPU_PYTHON ?= 3.12
GPU_PLATFORMS := manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_17_x86_64 \
  manylinux2014_x86_64 manylinux_2_12_x86_64 manylinux2010_x86_64
GPU_PACKAGES := jinja2 markupsafe nvidia-ml-py psutil pyyaml scipy

.PHONY: help run readme docs test test-fast test-long test-docs test-browser test-engines test-models test-versions test-oldest raise-versions check format families train bench bench-auto bench-forecast gpu-suite gpu-wheels clean

help:  ## Say what the targets do
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

# Exit code 3: an answer is undecided, as on a busy machine. That is an answer, and no failure to make.
SWEEP := $(BIN)/specbench sweep-k demo/draft demo/poor --time-budget 3m || \
  { code=$$?; [ $$code -eq 3 ] && echo "(exit code 3: undecided)"; }

run: $(RUN_STAMP)  ## Set up, then sweep K on the embedded pairs (about 4 minutes)
	$(SWEEP)
	@echo "Next, your own pair: $(BIN)/specbench run --target TARGET --draft DRAFT"

test: $(DEV_STAMP)  ## Set up, then run every test that needs no GPU
	$(BIN)/python -m pytest $(SPREAD)

test-fast: $(DEV_STAMP)  ## The tests that take no long measurement (below a minute)
	$(BIN)/python -m pytest $(SPREAD) -m "not slow and not gpu and not long and not engines and not models and not docs and not browser"

test-long: $(DEV_STAMP)  ## The proofs at full size that make test has samples of (minutes)
	$(BIN)/python -m pytest -m long -s

test-docs: $(DEV_STAMP)  ## Every example of the documentation, from an installed wheel (10 minutes)
	$(BIN)/python -m pytest -m docs tests/installed

# It needs Chromium: apt-get install chromium. The screenshots lie in build/screenshots.
test-browser: $(DEV_STAMP)  ## The report in a real Chromium: screens, print, keyboard, axe
	$(BIN)/python tests/browser/axe.py
	$(BIN)/python -m pytest -m browser -s tests/browser

# Once, real engines are built, outside the tree: some GB, half an hour.
test-engines: $(DEV_STAMP)  ## The proofs on real vLLM and llama.cpp; TABLE=1: with 40 prompts
	$(BIN)/python tests/real_engines/environments.py
	$(BIN)/python -m pytest -m engines -s tests/real_engines

# Once, environments of other libraries are made outside the tree: 1 GB, minutes.
test-models: $(DEV_STAMP)  ## Heads of other libraries; every family of models, on two transformers (25 minutes)
	$(BIN)/python tests/foreign_heads/environments.py
	$(BIN)/python -c "from tests.versions import make; make('oldest')"
	$(BIN)/python -m pytest -m models -s

families: $(DEV_STAMP)  ## Write specbench/families.json again, of two versions of transformers (20 minutes)
	$(BIN)/python -c "from tests.versions import make; make('oldest')"
	mkdir -p build && rm -f build/families.json
	$(ENGINES)/oldest/bin/python -m tools.families build/families.json
	$(BIN)/python -m tools.families build/families.json
	mv build/families.json specbench/families.json

# Once, two environments are made outside the tree: some GB, minutes.
test-versions: $(DEV_STAMP)  ## Every test on the oldest and the newest versions of what we build on (15 minutes)
	$(BIN)/python -m tests.versions oldest
	$(BIN)/python -m tests.versions newest

test-oldest: $(DEV_STAMP)  ## A sample of the tests on the oldest versions (below a minute)
	$(BIN)/python -m tests.versions oldest tests/hybrids tests/test_library_facts.py tests/decoding/test_architectures.py tests/cli/test_help.py

raise-versions: $(DEV_STAMP)  ## Test releases beyond the bounds of pyproject.toml, and raise these if all passes
	$(BIN)/python -m tests.versions raise

check: $(DEV_STAMP)  ## Format, lint and types; changes nothing
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(DEV_STAMP)  ## Format and mend what lint can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

readme: $(RUN_STAMP)  ## Measure the front page's figures again, on an idle machine (about 4 minutes)
	$(SWEEP)
	$(BIN)/python -m benchmarks.readme --made-run latest

docs: $(RUN_STAMP)  ## Write the generated pages again: keys of YAML files, figures
	$(BIN)/python -m tools.reference
	$(BIN)/python -m benchmarks.readme

train: $(RUN_STAMP)  ## Train the embedded models again into build/demo
	$(BIN)/python -m tools.demo.train --out build/demo

bench: $(RUN_STAMP)  ## Beside transformers on this CPU, in one interleaved run (minutes)
	$(BIN)/python -m benchmarks.bench

bench-auto: $(RUN_STAMP)  ## K = auto against the best fixed K on this CPU (about 20 minutes)
	$(BIN)/python -m benchmarks.auto

bench-forecast: $(RUN_STAMP)  ## Forecast against measured on this CPU (about 15 minutes)
	$(BIN)/python -m benchmarks.forecast

# On the GPU's machine as it is: its own Python, torch and transformers, and carried wheels.
gpu-suite:  ## PART=correct, speed or sweep on one GPU (below 8 minutes each; ARGS=... goes on to it)
	@case "$(PART)" in correct|speed|sweep) ;; \
	  *) echo "say which: make gpu-suite PART=correct, speed or sweep" >&2; exit 2 ;; esac
	@if ls $(WHEELS)/*.whl >/dev/null 2>&1 && [ ! -d $(SITE) ]; then \
	  $(PYTHON) -m pip install -q --no-index --no-deps --target $(SITE) $(WHEELS)/*.whl; fi
	PYTHONPATH=.:$(SITE) $(PYTHON) -m benchmarks.gpu_suite.$(PART) $(ARGS)

gpu-wheels: $(RUN_STAMP)  ## Fetch what the suite needs beside torch and transformers
	$(BIN)/python -m pip download -q -c constraints.txt -d $(WHEELS) --no-deps \
	  --only-binary=:all: --implementation cp --python-version $(GPU_PYTHON) \
	  $(GPU_PLATFORMS:%=--platform %) $(GPU_PACKAGES)

clean:  ## Remove the virtual environment and build products
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 1; }

$(RUN_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

# The tests compile what they import; all packages take as long as the rest of the set-up.
$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --no-compile -e '.[dev]'
	@touch $(RUN_STAMP) $@
