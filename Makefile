# `make demo` and `make test` set up everything they need in .venv.
#
#   make test PYTHON=python3.12        another interpreter
#   make test TORCH_INDEX=URL          an index with CPU builds of torch (docs/install.md); torch alone comes from there
#   make test PIP_FLAGS='--no-index --find-links wheels'     offline, from a folder of wheels
#   make test CUDA=yes                 the build of torch with CUDA, several gigabytes, is welcome
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
TORCH_INDEX ?=
PIP_FLAGS ?=
CUDA ?= no
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_VENV := .venv-bench
LOWEST_VENV := .venv-lowest
BARE_VENV := .venv-bare
INSTALL := -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)
TORCH_FROM := $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))

.PHONY: demo test test-all test-lowest test-bare torture torture-long check dist docs docs-serve pictures bench bench-quick bench-docs honesty clean

# torch first: from an index of its own if there is one, and not by accident with gigabytes of CUDA.
define install-torch
	test $(CUDA) = yes || ! $(1) -m pip install --dry-run --disable-pip-version-check $(PIP_FLAGS) $(TORCH_FROM) $(TORCH) \
		| grep --quiet 'Would install.*\(nvidia\|cuda\)' \
		|| { echo 'This would install torch with CUDA, several gigabytes. Give TORCH_INDEX= (docs/install.md), or CUDA=yes.' >&2; exit 1; }
	$(1) $(INSTALL) $(TORCH_FROM) $(TORCH)
endef

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(call install-torch,$(BIN)/python)
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[dask,plot,dev]'
	touch $@

demo: $(STAMP)  ## real flights: fit under a budget, evaluate, update with new rows, report; under two minutes
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## the test suite without the slow experiments
	$(BIN)/python -m pytest -n logical --dist worksteal

test-all: $(STAMP)  ## everything, the slow experiments included
	$(BIN)/python -m pytest -n logical --dist worksteal -m ''

test-lowest:  ## the test suite with the lowest versions of all dependencies (constraints-lowest.txt)
	test -x $(LOWEST_VENV)/bin/python || $(PYTHON) -m venv $(LOWEST_VENV)
	$(call install-torch,$(LOWEST_VENV)/bin/python)
	$(LOWEST_VENV)/bin/python $(INSTALL) -c constraints-lowest.txt -e '.[dask,plot,fit]' \
		duckdb hypothesis pandas polars psutil pytest pytest-xdist pyyaml
	$(LOWEST_VENV)/bin/python -m pytest -n logical --dist worksteal

test-bare:  ## what works without torch, in an environment that has none
	test -x $(BARE_VENV)/bin/python || $(PYTHON) -m venv $(BARE_VENV)
	$(BARE_VENV)/bin/python $(INSTALL) -c constraints.txt '.[plot]' pytest
	$(BARE_VENV)/bin/python -m pytest --noconftest --confcutdir=tests/bare tests/bare

dist: $(STAMP)  ## wheel and sdist in dist/
	$(BIN)/python -m build --quiet

torture: $(STAMP)  ## faults, hostile data and altered files for at most three minutes; counts are printed
	$(BIN)/python tests/torture --seconds 150

torture-long: $(STAMP)  ## the same in full length (hours): make torture-long ARGS='--only kills races'
	$(BIN)/python tests/torture --long $(ARGS)

check: $(STAMP)  ## lint, format, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.installed-docs: $(STAMP)
	$(BIN)/python $(INSTALL) -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.installed-docs  ## the site in build/site; fails on a broken link or a page that is not in the navigation
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs  ## the site on http://127.0.0.1:8000, built again at every change
	$(BIN)/mkdocs serve

pictures: $(STAMP)  ## the pictures of the README and of the gallery
	$(BIN)/python examples/picture.py
	$(BIN)/python examples/gallery.py

$(BENCH_VENV)/.installed: constraints.txt
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(call install-torch,$(BENCH_VENV)/bin/python)
	$(BENCH_VENV)/bin/python $(INSTALL) gpflow tf-keras gpytorch lightgbm catboost gpboost \
		mapie quantile-forest MuyGPyS pandas pyarrow scikit-learn psutil
	touch $@

bench: $(STAMP) $(BENCH_VENV)/.installed  ## measure ours and the peers in one run; writes benchmarks/results
	$(BIN)/python -m benchmarks.run

bench-quick: $(STAMP)  ## ten operations against the machine's own products, compared with the ratios kept; three minutes
	$(BIN)/python -m benchmarks.quick

bench-docs: $(STAMP)  ## rewrite the tables of the docs and the README from benchmarks/results
	$(BIN)/python -m benchmarks.render
	$(BIN)/python -m benchmarks.headline

honesty: $(STAMP)  ## the default estimator on every set: coverage, NLPD, RMSE; fails where a limit is broken
	$(BIN)/python -m benchmarks.honesty

clean:
	rm -rf $(VENV) $(BENCH_VENV) $(LOWEST_VENV) $(BARE_VENV) build dist demo-output .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
