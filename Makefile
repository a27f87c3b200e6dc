# make demo      install what the demo needs and run it
# make check     the quick half: lint, types, import contracts, tests that take no more than seconds
# make test      everything: the quick half, all tests, and the kernels' arithmetic on other CPUs
# make docs      the documentation site, in build/site (open build/site/index.html)
# make torture   faults, kills and hostile files for 15 minutes; writes results/torture.json
# make test-gpu  the tests that need a GPU, with $(PYTHON) as it is: installs nothing
# make measure-gpu  what waits for a GPU, for 25 minutes, with $(PYTHON) as it is (docs/measure.md)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEPENDENCIES := pyproject.toml lab/pyproject.toml constraints.txt
# Without --no-compile pip compiles all of 25,000 files, of which a run imports 4,000.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
PYTEST = $(BIN)/python -m pytest -n 2 --dist loadfile

.PHONY: demo check test docs test-capabilities torture test-gpu measure-gpu lint types imports clean

demo: $(VENV)/.installed-lab
	$(BIN)/sgdf demo

check: lint types imports
	$(PYTEST) -m "not gpu and not slow"

test: lint types imports
	$(PYTEST) -m "not gpu"
	$(MAKE) test-capabilities

# torch rounds differently with other instruction sets: one machine stands for several.
test-capabilities: $(VENV)/.installed-dev
	$(BIN)/python tests/kernels/capabilities.py

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

MINUTES ?= 15
torture: $(VENV)/.installed-dev
	$(BIN)/python lab/tests/torture --minutes $(MINUTES)

test-gpu:
	PYTHONPATH="src:lab/src:tests:lab/tests:.$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m pytest -m gpu tests/gpu tests/kernels/test_cuda.py tests/kernels/test_magnitudes.py lab/tests/gpu lab/tests/models lab/tests/optimizers

measure-gpu: MINUTES := $(if $(filter command line,$(origin MINUTES)),$(MINUTES),25)
measure-gpu:
	$(PYTHON) benchmarks/gpu_queue.py --minutes $(MINUTES)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports

# A stamp is younger than the files it was installed from, or the install runs again.
$(VENV)/.installed-lab: $(DEPENDENCIES) | $(BIN)/python
	$(INSTALL) -e . -e ./lab
	touch $@

$(VENV)/.installed-dev: $(DEPENDENCIES) | $(BIN)/python
	$(INSTALL) -e ".[jax,integrations,dev]" -e "./lab[instruments,vision,cluster,tensorboard,wandb]"
	touch $(VENV)/.installed-lab $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
