# derex: every target sets up .venv by itself; nothing is installed outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ORACLE := $(VENV)/.oracle
SUITES := $(VENV)/.suites
EVERYTHING := $(VENV)/.everything
OUT ?= results

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint format lock clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(READY)  ## create .venv with the pinned, hashed dependencies

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"derex needs Python >= 3.11; {sys.executable} is {v[0]}.{v[1]}. Use: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV) (about a minute, once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --no-deps -r requirements.lock
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(ORACLE): requirements-oracle.lock $(READY)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --no-deps -r requirements-oracle.lock
	@touch $@

$(SUITES): requirements-envs.lock $(READY)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --no-deps -r requirements-envs.lock
	@touch $@

$(EVERYTHING): requirements-everything.lock $(ORACLE) $(SUITES)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: --no-deps -r requirements-everything.lock
	@touch $@

demo: $(READY)  ## the paper's Figures 2 and 3, quick: pictures, numbers and a page to open
	@$(BIN)/derex demo --out $(OUT)/demo

test: $(READY) $(ORACLE) $(SUITES)  ## lint, types and the test suite
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

test-all: $(READY) $(EVERYTHING)  ## every suite and logger, and the slow tests too
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(READY)  ## ruff and the type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check

format: $(READY)  ## rewrite in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

COMPILE := uv pip compile -q --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
  --no-header --no-annotate --no-emit-index-url --no-emit-find-links pyproject.toml

# What a lock adds to others, with the versions that are there.
added = $(foreach other,$(1),-c $(other)) $$(sed -nE 's/^([A-Za-z0-9._-]+)==.*/--no-emit-package \1/p' $(1))

lock:  ## resolve pyproject.toml again into the four requirements*.lock (needs uv)
	$(COMPILE) --extra dev -o requirements.lock
	$(COMPILE) --extra oracle -o requirements-oracle.lock $(call added,requirements.lock)
	$(COMPILE) --extra envs -o requirements-envs.lock $(call added,requirements.lock)
	$(COMPILE) --extra everything -o requirements-everything.lock \
	  $(call added,requirements.lock requirements-oracle.lock requirements-envs.lock)

clean:  ## remove .venv and results
	rm -rf $(VENV) results build dist
