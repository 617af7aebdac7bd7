# Every target makes .venv and installs what it needs there; Python 3.11 or later, make and a package index are enough.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test check matrix coverage bench docs clean

help:
	@echo "make demo    the default, ADVI and the paper's method on a line in raw units: a table, what to conclude, a report"
	@echo "make test    the tests"
	@echo "make check   ruff, mypy and the tests: what CI runs"
	@echo "make matrix  the tests on every Python from 3.11 to 3.13 that is installed, each with the oldest and the newest jax"
	@echo "make coverage  the tests, and which lines of src they run (long)"
	@echo "make bench   the benchmarks (long)"
	@echo "make docs    the documents as a site, in site/ (some minutes: the gallery is run)"
	@echo "make clean   remove .venv and caches"

demo: .venv/.ready
	@mkdir -p out
	@$(BIN)/yoasovi compare women --methods yoasovi,advi,yoasovi-metropolis --report out/demo.html

test: .venv/.ready
	@$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/.ready
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy
	@$(MAKE) --no-print-directory test

# The one place where the matrix stands; the oldest jax is the one that pyproject.toml allows.
PYTHONS ?= python3.11 python3.12 python3.13
JAXES ?= jax==$(shell sed -n 's/^ *"jax>=\([0-9.]*\)",/\1/p' pyproject.toml) jax
TESTS ?=
matrix:
	@set -e; for python in $(PYTHONS); do \
	  if ! $$python -c "" 2>/dev/null; then echo "== $$python is not installed: left out"; continue; fi; \
	  for jax in $(JAXES); do \
	    echo "== $$python, $$jax"; rm -rf .matrix; $$python -m venv .matrix; \
	    .matrix/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[test]" "$$jax"; \
	    .matrix/bin/python -m pytest -n 2 --dist worksteal $(TESTS); \
	  done; \
	done

coverage: .venv/.ready
	@$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered

bench: .venv/.ready-bench
	@set -e; for file in $(filter-out %/posteriordb.py %/svi_compat.py,$(wildcard benchmarks/[a-z]*.py)); do echo "== $$file"; $(BIN)/python $$file; done
	@echo "Left out: $(BIN)/python benchmarks/posteriordb.py FOLDER, which asks for a clone of github.com/stan-dev/posteriordb,"
	@echo "and $(BIN)/python benchmarks/svi_compat.py CLONE, which asks for one of github.com/pyro-ppl/numpyro."

docs: .venv/.ready-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html"

clean:
	rm -rf site .venv .matrix .mypy_cache .pytest_cache .ruff_cache

# Stamps: installed again when pyproject.toml changes.
.venv/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv (the first time takes a minute or two) ..."
	@$(PIP) --editable ".[dev]"
	@touch $@

.venv/.ready-docs: .venv/.ready
	@$(PIP) --editable ".[dev,docs]"
	@touch $@

.venv/.ready-bench: .venv/.ready
	@$(PIP) --editable ".[dev,bench]"
	@touch $@
