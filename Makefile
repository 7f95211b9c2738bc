# `make demo` and `make test` set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_VENV := .venv-bench

.PHONY: demo test test-all torture torture-long check docs docs-serve picture bench bench-docs honesty clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dask,plot,dev]'
	touch $@

demo: $(STAMP)  ## real flights: fit under a budget, evaluate, update with new rows, report; under two minutes
	$(BIN)/python examples/demo.py

test: $(STAMP)  ## the test suite without the slow experiments
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: $(STAMP)  ## everything, the slow experiments included
	$(BIN)/python -m pytest -n auto --dist worksteal -m ''

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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.installed-docs  ## the site in build/site; fails on a broken link or a page that is not in the navigation
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs  ## the site on http://127.0.0.1:8000, built again at every change
	$(BIN)/mkdocs serve

picture: $(STAMP)  ## the picture of the README
	$(BIN)/python examples/picture.py

$(BENCH_VENV)/.installed: constraints.txt
	test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet torch==2.13.0
	$(BENCH_VENV)/bin/python -m pip install --quiet gpflow tf-keras gpytorch lightgbm catboost gpboost pandas pyarrow scikit-learn psutil
	touch $@

bench: $(STAMP) $(BENCH_VENV)/.installed  ## measure ours and the peers in one run; writes benchmarks/results
	$(BIN)/python -m benchmarks.run

bench-docs: $(STAMP)  ## rewrite the tables of the docs and the README from benchmarks/results
	$(BIN)/python -m benchmarks.render
	$(BIN)/python -m benchmarks.headline

honesty: $(STAMP)  ## the default estimator on every set: coverage, NLPD, RMSE; fails where a limit is broken
	$(BIN)/python -m benchmarks.honesty

clean:
	rm -rf $(VENV) $(BENCH_VENV) build demo-output .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
