# `make demo` and `make test` are the two commands; both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
# uv takes a quarter of pip's time, but does not know an index of one's own that pip is told of.
INSTALL = $(call INSTALL_IN,$(VENV),$(1))
INSTALL_IN = $(BIN)/uv pip install --quiet --python $(1)/bin/python $(2) || \
	$(1)/bin/python -m pip install --quiet --no-compile $(2)
# Packages are installed without bytecode. Unless it is kept, every process compiles torch again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Files whose English `make check` checks.
PROSE := stateful_gpu_loader tests benchmarks examples scripts docs README.md CHANGELOG.md CONTRIBUTING.md

# What a test may be marked with (pyproject.toml). The fast ones have no mark, or are told apart.
MARKS := processes ranks fuzz benchmarks pretend_gpu gpu trainers dali ray
any_of = ($(subst $() $(), or ,$(strip $(1))))

.PHONY: demo test test-all $(MARKS:%=test-%) check docs bench bench-quick bench-peers dist format clean

demo: $(VENV)/.ready-demo
	$(BIN)/python -m examples.demo --output demo-output

test: $(VENV)/.ready
	$(PYTEST) -m "fast or not $(call any_of,$(MARKS))"

# Everything: the fast tests, and then those with a mark, which also run mark by mark. Large packages
# are imported last, because large processes fork slowly.
LARGE := benchmarks trainers dali ray
test-all: test
	$(PYTEST) -m "$(call any_of,$(filter-out $(LARGE),$(MARKS))) and not $(call any_of,fast $(LARGE))"
	$(PYTEST) -m "$(call any_of,$(LARGE)) and not fast"

$(MARKS:%=test-%): test-%: $(VENV)/.ready
	$(PYTEST) -m $*

check: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_prose.py $(PROSE)

# The documentation as a site, in site/; `python -m http.server -d site` shows it, its search included.
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --clean
	@echo "The documentation is in site/index.html"

# A wheel and an sdist, each installed into a clean environment and used there.
dist: $(VENV)/.ready
	rm -rf dist
	$(BIN)/uv build --quiet
	PATH="$(abspath $(BIN)):$$PATH" bash scripts/smoke_test_dist.sh dist

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Two minutes: ratios to torch's DataLoader; `python -m benchmarks.compare A.json B.json` compares two.
bench-quick: $(VENV)/.ready
	$(BIN)/python -m benchmarks.bench_quick --output build/bench

bench: $(VENV)/.ready-bench
	$(BIN)/python -m benchmarks

# Loaders of other projects beside this one, then the tables and the pictures of all results.
bench-peers: $(PEERS)/.ready
	$(PEERS)/bin/python -m benchmarks.bench_peers
	$(PEERS)/bin/python -m benchmarks.table

$(BIN)/uv:
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile uv

$(VENV)/.ready-demo: pyproject.toml | $(BIN)/uv
	$(call INSTALL,--editable '.[demo]')
	touch $@

$(VENV)/.ready: pyproject.toml | $(BIN)/uv
	$(call INSTALL,--editable '.[dev]')
	touch $@ $(VENV)/.ready-demo

$(VENV)/.ready-docs: pyproject.toml | $(BIN)/uv
	$(call INSTALL,--editable '.[docs]')
	touch $@

$(VENV)/.ready-bench: $(VENV)/.ready
	$(call INSTALL,--editable '.[bench]')
	touch $@

$(PEERS)/.ready: pyproject.toml benchmarks/peers/requirements.txt | $(BIN)/uv
	$(BIN)/python -m venv $(PEERS)
	$(call INSTALL_IN,$(PEERS),--editable '.[bench]' --requirement benchmarks/peers/requirements.txt)
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) demo-output build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache
