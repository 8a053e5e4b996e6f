# Every target makes .venv first where it is missing or older than pyproject.toml.
# The first of the Pythons 3.$(1) that runs: on the path, or one that pyenv keeps.
find_python = $(firstword $(foreach minor,$(1),$(shell for p in python3.$(minor) $(HOME)/.pyenv/versions/3.$(minor).*/bin/python; do \
	$$p -c 'import sys; sys.exit(sys.version_info[1] != $(minor))' 2>/dev/null && { echo $$p; break; }; done)))
PYTHON ?= $(call find_python,14 13 12 11)
OLDEST ?= $(call find_python,11)
BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest --numprocesses=3 --dist=worksteal
# Hundreds of processes of the tests import the library: its byte code is written once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help check fence format test test-accelerator test-core test-all byte-code docs demo demo-ps bench soak package lowest tpu-compiler compilers clean

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "jaxtribute needs Python 3.11 or newer. HINT: install it, or run make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet --editable '.[dev]'
	@touch $@

check: $(READY)  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(READY)  ## write the formatting and the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

SLOW =
test: $(READY)  ## the tests that start no process of their own: minutes; with SLOW=32 also one in thirty-two of the others
	$(PYTEST) $(if $(SLOW),--numprocesses=5 --durations=30 --slow-share=$(SLOW),-m "not slow")

test-core: $(READY)  ## the core's tests that start no process
	$(PYTEST) -m "not slow" tests/core

test-addon-%: $(READY)
	$(PYTEST) -m "not slow" tests/addons/$*

# Not in .venv, whose JAX has no accelerators: PYTHON is one that has, and what the tests need.
test-accelerator:  ## the tests of one accelerator, where there is one: make test-accelerator PYTHON=python3
	JAX_PLATFORMS= XLA_PYTHON_CLIENT_PREALLOCATE=false $(PYTHON) -m pytest -m "slow or not slow" tests/test_accelerator.py

fence: $(READY)  ## without each add-on in turn: import, the demo and the core's tests (hours); ADDONS="keras rpc" for some
	$(BIN)/python tests/support/without_addons.py $(ADDONS)

# Else each of pytest's processes would compile libraries and tests at its start, beside the others: half a minute each.
byte-code: $(READY)  ## write the byte code of the libraries and the tests, as the tests would
	-@$(BIN)/python -m pytest --collect-only --quiet >/dev/null

# Python's own monitoring counts lines at almost no cost; Python 3.11 has none, and takes longer.
test-all: export COVERAGE_CORE = sysmon
test-all: $(READY)  ## also those that start and kill processes, the pages and the examples; with coverage
	$(PYTEST) --numprocesses=5 --durations=100 --cov --cov-report=term --cov-fail-under=95

docs: $(READY)  ## build the documentation into site/
	$(BIN)/zensical build --strict

demo-ps: $(READY)  ## the same with a parameter server and two workers, one of which is killed
	$(BIN)/python examples/parameter_server.py --kill

demo: $(READY)  ## train on the handwritten digits: one device, then mirrored on four
	$(BIN)/python examples/digits.py

bench: $(READY)  ## run all benchmarks, within an hour; `python -m benchmarks list` names them
	$(BIN)/python -m benchmarks

soak: $(READY)  ## 100 random faults of 79 kinds, then 40 kills of workers at random moments (an hour)
	PYTHONPATH=tests:tests/support $(BIN)/python -m soak --faults 100
	$(BIN)/python tests/soak/kills.py

package: $(READY)  ## build wheel and sdist into dist/, and try the wheel in an environment of its own
	rm -rf dist build/smoke
	$(BIN)/python -m hatchling build
	$(PYTHON) -m venv build/smoke
	build/smoke/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	build/smoke/bin/jaxtribute --help >/dev/null
	cd build/smoke && JAXTRIBUTE_CPU_DEVICES=2 bin/python $(CURDIR)/tests/support/smoke.py

lowest:  ## the core on the oldest Python and the lowest versions of pyproject.toml, a case of each test; SHARE=4 for a quarter
	@test -n "$(OLDEST)" || { echo "the oldest leg needs Python 3.11. HINT: install it, or run make lowest OLDEST=/path/to/python3.11"; exit 1; }
	$(OLDEST) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=build/lowest build/lowest/bin/uv pip install --quiet --resolution lowest-direct --editable '.[test]'
	build/lowest/bin/python -m pytest --numprocesses=3 --dist=worksteal -m "not slow" \
		--cases=1 $(if $(SHARE),--share=$(SHARE)) tests/core

# Beside the compilers JAX would look for their accelerators, in every test: so they have environments of their own.
tpu-compiler: COMPILERS = tpu-compiler
compilers: COMPILERS = tpu-compiler,gpu-compiler
tpu-compiler:  ## test with the compiler of TPUs, none of which is needed (installs 1 GB)
compilers:  ## test with the compilers of TPUs and GPUs, neither of which is needed (installs 6 GB)
tpu-compiler compilers:
	@test -n "$(PYTHON)" || { echo "jaxtribute needs Python 3.11 or newer. HINT: install it, or run make $@ PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv build/$@
	build/$@/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=build/$@ build/$@/bin/uv pip install --quiet --editable '.[test,$(COMPILERS)]'
	JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 ALLOW_MULTIPLE_LIBTPU_LOAD=1 build/$@/bin/python -m pytest \
		--numprocesses=2 --dist=worksteal -m "slow or not slow" $(if $(SHARE),--share=2) tests/addons/compiling

clean:  ## remove everything that the targets above make
	rm -rf .venv site dist build .cache .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
