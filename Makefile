# The two commands are `make demo` and `make test`; both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench format clean

demo: $(READY)
	$(BIN)/python -m stateful_gpu_loader demo --output demo-output

test: $(READY)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.ready-bench
	$(BIN)/python -m benchmarks

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

$(VENV)/.ready-bench: $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) demo-output build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
