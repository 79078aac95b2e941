# Each target sets up all that it needs: a virtual environment in .venv, made once and renewed when the
# dependencies change.
PYTHON ?= python3
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: each would compile all modules again

.PHONY: help demo demo-flower test test-fast test-release coverage check docs wheel bench bench-flower clean
.DEFAULT_GOAL := help

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedclass needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/ready ## FedAvg, FedCLASS and FedEven side by side on drawn digits (no download)
	$(BIN)/fedclass compare demo --methods fedavg,fedclass,fedeven

test: .venv/ready ## the tests; at the end, what was skipped and how to have it
	$(BIN)/pytest --numprocesses 4 --dist worksteal -m 'not release'

test-fast: .venv/ready ## the tests without whole runs, processes, servers or a browser (a minute)
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m 'not slow and not release'

test-release: .venv/ready ## the rest: pages and notebook as programs, site, wheel, machines in network namespaces
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m release

coverage: .venv/ready ## all tests again, and which lines they have run, in their processes too
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest --numprocesses 3 --dist worksteal; \
	  failed=$$?; $(BIN)/coverage combine --quiet; $(BIN)/coverage report; exit $$failed

check: .venv/ready ## format, lint, types, import layers (seconds)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/ready ## the documentation as a site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel: .venv/ready ## sdist and wheel in dist/, checked; a test installs what this builds
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

demo-flower: .venv/ready ## a server and three sites on this machine, with TLS and keys (some minutes)
	rm -rf runs/flower
	$(BIN)/fedclass deploy demo --out runs/flower

bench: .venv/ready ## speed as ratios, up to ten minutes; nothing else should run meanwhile
	$(BIN)/python bench/speed.py

bench-flower: .venv/ready ## what a deployment costs, some minutes; nothing else should run meanwhile
	$(BIN)/pip install --quiet --editable '.[simulation]'
	$(BIN)/python bench/flower.py

clean: ## remove the virtual environment and caches
	rm -rf .venv .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
