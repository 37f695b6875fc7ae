# The two commands are `make demo` and `make test`; both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TRAINERS := .venv-trainers

.PHONY: demo test test-trainers check bench format clean

demo: $(READY)
	$(BIN)/python -m stateful_gpu_loader demo --output demo-output

test: $(READY)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

# Composer and Ray Train: results in docs/trainers-apart.md.
test-trainers: $(TRAINERS)/.ready
	$(TRAINERS)/bin/python -m pytest -o addopts="--doctest-modules -q" \
		-W "ignore:Implicitly cleaning up:ResourceWarning" \
		tests/trainers_apart stateful_gpu_loader/integrations/composer.py

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

# Layered on $(VENV), whose torch it shares. Composer pins an older one, which is overridden.
$(TRAINERS)/.ready: $(READY)
	$(BIN)/python -m venv $(TRAINERS)
	$(BIN)/python -c 'import sysconfig as s; \
		print("import site; site.addsitedir(%r)" % s.get_path("purelib"))' \
		> $(TRAINERS)/beside.pth
	mv $(TRAINERS)/beside.pth $(TRAINERS)/lib/python3*/site-packages/
	$(TRAINERS)/bin/python -m pip install --quiet 'ray[train]>=2.50' coolname \
		'importlib-metadata>=5,<9' 'mosaicml-cli>=0.5.25,<0.8' py-cpuinfo tabulate
	$(TRAINERS)/bin/python -m pip install --quiet --no-deps 'mosaicml>=0.32.1' torch_optimizer
	touch $@

clean:
	rm -rf $(VENV) $(TRAINERS) demo-output build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
