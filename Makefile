# make demo    install what the demo needs and run it
# make test    install everything, lint, type-check, test
# make test-gpu  the tests that need a GPU, with $(PYTHON) as it is: installs nothing
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEPENDENCIES := pyproject.toml constraints.txt
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-gpu lint types clean

demo: $(VENV)/.installed-lab
	$(BIN)/sgdf demo

test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not gpu"

test-gpu:
	PYTHONPATH="src:tests:.$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m pytest -m gpu tests/gpu tests/lab/models tests/lab/optimizers

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

# A stamp is younger than the files it was installed from, or the install runs again.
$(VENV)/.installed-lab: $(DEPENDENCIES) | $(BIN)/python
	$(INSTALL) -e ".[lab]"
	touch $@

$(VENV)/.installed-dev: $(DEPENDENCIES) | $(BIN)/python
	$(INSTALL) -e ".[lab,analysis,vision,jax,cluster,tensorboard,dev]"
	touch $(VENV)/.installed-lab $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
