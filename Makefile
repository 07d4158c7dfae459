# Every target creates what it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENV    := .venv
BIN    := $(ENV)/bin
# The exact version of all that is installed here, and of what builds it: no release of others breaks a target.
PINS   := constraints.txt
# torch is renewed by hand (make lock TORCH=2.15.0), because its newest build for Linux brings GBs of CUDA packages.
TORCH  ?= $(shell sed -n 's/^torch==//p' $(PINS))
# An environment with the newest versions that pyproject.toml allows.
NEWEST := .venv-newest
INSTALL := -m pip install --quiet --disable-pip-version-check --editable ".[test,check,docs]"
FREEZE  := -m pip --disable-pip-version-check freeze --exclude-editable
# Names and versions only: without the mark of a CPU build and without the packages that a build of torch brings itself.
NAMES   := sed -E -e 's/[+][a-z0-9.]+$$//' -e '/^(nvidia|cuda|triton)/d' -e '/ @ /d'
# Some machines advertise AMX without letting programs use it: a bf16 matrix product then dies with
# "Illegal instruction". oneDNN reads this limit once, when torch starts; AVX-512 bf16 stays on.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16
# The tests run in several processes with one thread each: one more than there are cores, because some wait for a
# browser, and at most five.
CORES   := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS := $(shell expr $(CORES) + 1 '<' 5 >/dev/null && expr $(CORES) + 1 || echo 5)
ONE_THREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE
PYTEST     := -m pytest -n $(WORKERS) --dist worksteal

.PHONY: test test-all test-newest check format lock explore docs pictures clean

test: $(ENV)/ready            ## the tests: what CI runs
	$(ONE_THREAD) $(BIN)/python $(PYTEST) -m "not slow"

test-all: $(ENV)/ready        ## also load tests, fuzzing and longer trainings
	HYPOTHESIS_PROFILE=thorough $(ONE_THREAD) $(BIN)/python $(PYTEST)

# make test-newest WITH="transformers~=5.0.0 torch==2.13.0" takes these versions, and the newest of all others.
test-newest: $(NEWEST)/ready  ## the tests with the newest versions of all packages, and which of them are other than ours
	@$(ONE_THREAD) $(NEWEST)/bin/python $(PYTEST) -m "not slow"; broken=$$?; \
	  echo; echo "installed instead of what $(PINS) names:"; grep -vxFf $(PINS) $(NEWEST)/versions.txt; exit $$broken

.PHONY: $(NEWEST)/ready       # made anew each time: there may be newer versions
$(NEWEST)/ready:
	rm -rf $(NEWEST)
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python $(INSTALL) $(WITH)
	$(NEWEST)/bin/python $(FREEZE) | $(NAMES) > $(NEWEST)/versions.txt

check: $(ENV)/ready           ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/deno fmt --quiet --check
	$(BIN)/deno lint --quiet
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_house.py --durations=0

lock:                         ## write the newest versions that fit together into constraints.txt
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python $(INSTALL) torch==$(TORCH)
	echo "# The versions that make installs, written by make lock; users get the ranges of pyproject.toml." > build/lock/pins
	build/lock/bin/python $(FREEZE) | $(NAMES) >> build/lock/pins
	mv build/lock/pins $(PINS)

format: $(ENV)/ready          ## format and fix Python with ruff, the page with deno
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/deno fmt --quiet
	$(BIN)/deno lint --quiet --fix

explore: $(ENV)/ready         ## open the explorer, and print its address
	$(BIN)/python -m clearhead explore

docs: $(ENV)/ready            ## build the site of README.md, docs/ and the API reference, and print its first page
	rm -rf build/site
	$(BIN)/python docs/site.py build/site

pictures: $(ENV)/ready        ## draw the pictures of docs/ again
	$(BIN)/python docs/pictures.py

$(ENV)/ready: pyproject.toml $(PINS)
	$(PYTHON) -m venv $(ENV)
	PIP_CONSTRAINT=$(PINS) PIP_BUILD_CONSTRAINT=$(PINS) $(BIN)/python $(INSTALL)
	touch $@

clean:                        ## remove the environment and all that was built; trainings in runs/ stay
	rm -rf $(ENV) $(NEWEST) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -prune -exec rm -rf {} +
