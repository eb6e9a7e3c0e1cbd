# make sweep    set up what is missing and run the main job
# make stress   400 fresh random cases of each simulated kernel, and the controller at all published sizes
# make gpu-test the tests that need an NVIDIA GPU (install the extra cuda12 or cuda13 first)
# make test     set up what is missing, lint, and run the tests
# Variables: PYTHON (the interpreter that makes .venv), SWEEP (options of the main job), PYTEST (options of the tests)

PYTHON ?= python3
SWEEP  ?= --config quick.toml
PYTEST ?= -n auto --dist worksteal

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: setup setup-dev sweep test stress gpu-test lint clean

# The stamps make a second call quick. `sweep` needs the first only, so it never waits for the test tools.
setup: $(VENV)/.setup
	@:
setup-dev: $(VENV)/.setup-dev
	@:

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mkbench needs Python 3.11 or later: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 3; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "python cannot make a virtual environment: apt-get install python3-venv"; exit 3; }

$(VENV)/.setup: pyproject.toml | $(BIN)/python
	@echo "setting up $(VENV)"
	@$(PIP) install --editable '.[mpi]'
	@touch $@

$(VENV)/.setup-dev: $(VENV)/.setup
	@echo "adding the test tools to $(VENV)"
	@$(PIP) install --editable '.[mpi,dev]'
	@touch $@

sweep: setup
	$(BIN)/mkbench sweep $(SWEEP)

test: setup-dev lint
	$(BIN)/python -m pytest $(PYTEST)

stress: setup-dev
	$(BIN)/python -m pytest $(PYTEST) --hypothesis-profile stress \
	  tests/platforms/test_sim_exact.py tests/platforms/test_sim_adaptive.py

gpu-test: setup-dev
	$(BIN)/python -m pytest -m gpu tests

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find mkbench tests -name __pycache__ -type d -prune -exec rm -rf {} +
