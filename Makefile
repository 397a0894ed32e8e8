# Everything runs in .venv, which `make setup` creates from pyproject.toml and constraints.txt.
# Needs only make and Python 3.11 or newer. Choose the interpreter with `make PYTHON=/path/to/python`.

VENV := .venv
BIN := $(VENV)/bin
AUDIT := .venv-audit
CANDIDATES := python3.11 python3.12 python3.13 python3 python
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)

# The stamp carries a checksum of what it was made from, so an unchanged checkout never installs twice.
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt 2>/dev/null | cksum | cut -d' ' -f1)

# Test processes; `make test JOBS=0` runs everything in one.
JOBS ?= 2
ARGS ?=
LIVES ?= 1000
KILLS ?= 120
MINUTES ?= 10
PAIRS ?= 2000
STORE ?=
INPUTS ?= 1000000
SEED ?= 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test check house test-ui screenshots pytest lint format docs bench bugs crash prove simulate soak faults fuzz prove-versions audit clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

setup: $(STAMP) ## create .venv with the exact versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "lance-memwal needs Python 3.11 or newer: none found, set PYTHON=..." >&2; exit 1; }
	@test -x $(BIN)/python || { echo "creating $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing lance-memwal and its tools into $(VENV) (the first time takes a few minutes)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@rm -f $(VENV)/.installed-* && touch $@

demo: setup ## see it at work
	@$(BIN)/python examples/demo.py $(ARGS)

test: lint docs pytest ## lint, then every test of the ci profile

check: lint ## lint, then the tests of the rooms that the change touches (minutes)
	@$(BIN)/python tools/check.py $(ARGS)

house: setup ## print the size and shape of the project
	@$(BIN)/python tools/house.py

pytest: setup
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

test-ui: setup ## the web page in a headless Chromium of this machine
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest -n 0 tests/browser $(ARGS)

screenshots: ## the pictures of the web page in docs/images, made by its tests
	@$(MAKE) test-ui ARGS="--screenshots docs/images -k picture"

lint: setup ## ruff, mypy --strict, the rooms (import-linter), dead code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture src --min-confidence 80

format: setup ## rewrite the code the way `make lint` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: setup ## build the documentation into site/, without the network; every warning is an error
	$(BIN)/python tools/check_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f tools/mkdocs.yml

bench: setup ## measure, side by side with the peer where there is one
	@$(BIN)/python -m benchmarks $(ARGS)

bugs: setup ## plant classic bugs one by one, and say which test catches each
	$(BIN)/python -m tests.bugs $(ARGS)

crash: setup ## kill processes of tables again and again: KILLS=120 SEED=0; ARGS=--takeovers stops them instead
	$(BIN)/python -m tests.harness.crash --kills $(KILLS) --seed $(SEED) $(ARGS)

prove: setup ## the full-scale proofs (long: see docs/development.md)
	LANCE_MEMWAL_PROFILE=prove $(BIN)/python -m pytest -m "prove or scaled" --timeout 0 $(ARGS)

simulate: setup ## whole lives in one seeded order: LIVES=1000 SEED=0, one again with LIVES=1 ARGS=--trace
	$(BIN)/python -m tests.simulation --lives $(LIVES) --seed $(SEED) $(ARGS)

soak: setup ## hours of a table's life, with kills and faults: MINUTES=10 SEED=0; fails if something is lost or grows
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

faults: setup ## one life per store call and kind of fault, and PAIRS=2000 with two faults, on both stores; STORE=local or s3; ARGS="--slice 3/10"
	$(BIN)/python -m tests.faults --jobs $(JOBS) $(if $(STORE),--store $(STORE)) --pairs $(PAIRS) --seed $(SEED) $(ARGS)

fuzz: setup ## INPUTS=1000000 mutated inputs for every decoder; ARGS="bloom wal_entry" chooses some
	$(BIN)/python tests/fuzz --inputs $(INPUTS) --seed $(SEED) $(ARGS)

prove-versions: ## the interop tests beside the newest pylance and LanceDB, in an environment of their own
	$(PYTHON) tools/prove_versions.py $(ARGS)

audit: ## known weaknesses of the exact versions of constraints.txt; needs the network, and fails if one cannot be asked for
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && \
		$(AUDIT)/bin/python -m pip install -qq --disable-pip-version-check 'pip-audit>=2.10,<3'; }
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt $(ARGS)

clean: ## remove .venv and every cache
	rm -rf $(VENV) $(AUDIT) .venv-versions .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site src/*.egg-info
