# Every target creates what it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENV    := .venv
BIN    := $(ENV)/bin
# Some machines advertise AMX without letting programs use it: a bf16 matrix product then dies with
# "Illegal instruction". oneDNN reads this limit once, when torch starts; AVX-512 bf16 stays on.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
# The tests run in several processes with one thread each: one more than there are cores, because some wait for a
# browser, and at most five.
CORES   := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS := $(shell expr $(CORES) + 1 '<' 5 >/dev/null && expr $(CORES) + 1 || echo 5)
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: test test-all check format explore docs pictures clean

test: $(ENV)/ready            ## the tests: what CI runs
	$(PYTEST) -m "not slow"

test-all: $(ENV)/ready        ## also load tests, fuzzing and longer trainings
	HYPOTHESIS_PROFILE=thorough $(PYTEST)

check: $(ENV)/ready           ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py --durations=0

format: $(ENV)/ready          ## format and fix with ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

explore: $(ENV)/ready         ## open the explorer, and print its address
	$(BIN)/python -m clearhead explore

docs: $(ENV)/ready            ## build the site of README.md, docs/ and the API reference, and print its first page
	rm -rf build/site
	$(BIN)/python docs/site.py build/site

pictures: $(ENV)/ready        ## draw the pictures of docs/ again
	$(BIN)/python docs/pictures.py

$(ENV)/ready: pyproject.toml
	$(PYTHON) -m venv $(ENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,check,docs]"
	touch $@

clean:                        ## remove the environment and all that was built; trainings in runs/ stay
	rm -rf $(ENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
