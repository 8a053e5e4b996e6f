# Every target makes .venv first where it is missing or older than pyproject.toml.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
READY := .venv/.ready
# Hundreds of processes of the tests import the library: its byte code is written once.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help check format test docs demo demo-ps bench soak package lowest clean

help:  ## show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "jaxtribute needs Python 3.11 or newer. HINT: install it, or run make PYTHON=/path/to/python3"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

check: $(READY)  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(READY)  ## write the formatting and the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(READY)  ## the whole test suite, with coverage
	$(BIN)/python -m pytest --numprocesses=2 --dist=worksteal --cov --cov-report=term --cov-fail-under=95

docs: $(READY)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

demo-ps: $(READY)  ## the same with a parameter server and two workers, one of which is killed
	$(BIN)/python examples/parameter_server.py --kill

demo: $(READY)  ## train on the handwritten digits: one device, then mirrored on four
	$(BIN)/python examples/digits.py

bench: $(READY)  ## run all benchmarks: an hour or more; `python -m benchmarks list` names them
	$(BIN)/python -m benchmarks

soak: $(READY)  ## kill workers of a training at random moments, 40 times (minutes)
	$(BIN)/python tests/soak.py

package: $(READY)  ## build wheel and sdist into dist/, and try the wheel in an environment of its own
	rm -rf dist build/smoke
	$(BIN)/python -m hatchling build
	$(PYTHON) -m venv build/smoke
	build/smoke/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	build/smoke/bin/jaxtribute --help >/dev/null
	cd build/smoke && JAXTRIBUTE_CPU_DEVICES=2 bin/python $(CURDIR)/tests/smoke.py

lowest:  ## test at the lowest versions of the dependencies that pyproject.toml allows
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=build/lowest build/lowest/bin/uv pip install --quiet --resolution lowest-direct .
	VIRTUAL_ENV=build/lowest build/lowest/bin/uv pip install --quiet pytest pytest-timeout hypothesis psutil
	build/lowest/bin/python -m pytest -q tests/values tests/optimizer tests/execution/test_function.py \
		tests/input/test_dataset.py tests/input/test_explain.py tests/strategies/test_mirrored.py tests/cli/test_main.py

clean:  ## remove everything that the targets above make
	rm -rf .venv site dist build .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
