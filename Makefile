# The whole contributor guide: every target creates what it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENV    := .venv
BIN    := $(ENV)/bin
# Some machines advertise AMX without letting programs use it: a bf16 matrix product then dies with
# "Illegal instruction". oneDNN reads this limit once, when torch starts; AVX-512 bf16 stays on.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
# Idle threads sleep instead of spinning: on busy or shared cores a small step is then a hundred times faster.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: test test-all check format explore docs pictures clean

test: $(ENV)/ready            ## the tests: what CI runs
	$(BIN)/python -m pytest -m "not slow"

test-all: $(ENV)/ready        ## the tests with load, fuzzing and longer runs
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest

check: $(ENV)/ready           ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py --durations=0

format: $(ENV)/ready          ## let ruff put things right
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

explore: $(ENV)/ready         ## open the explorer, and print its address
	$(BIN)/python -m clearhead explore

docs: $(ENV)/ready            ## make a site of README.md, docs/ and the API reference, and print where it begins
	rm -rf build/site
	$(BIN)/python docs/site.py build/site

pictures: $(ENV)/ready        ## draw the pictures of docs/ again
	$(BIN)/python docs/pictures.py

$(ENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,check,docs]"
	touch $@

clean:                        ## take away the environment and all that was built; trainings in runs/ stay
	rm -rf $(ENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
