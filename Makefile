SHELL := bash
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo evidence test slow check docs clean

PYTHON ?= python3
BIN := .venv/bin
# Compiled files are kept, whatever the environment says: each worker needs all of them.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
SHOW := awk '/^ *(Collecting|Downloading|Using cached|Installing|Building|Preparing)/ {printf "\r\033[K%.78s", $$0; fflush()} /^ *(ERROR|error)/ {print} END {printf "\r\033[K"}'

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

setup: .venv/.installed ## make .venv and install the package with pinned versions

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "paumer needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1 || true)."; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "$(PYTHON) has no venv module. On Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Setting up .venv (two to five minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]' | $(SHOW)
	@touch $@

demo: setup ## the built-in model at several speeds on held-out scenes: open out/report.html
	@$(BIN)/paumer demo --out out

evidence: setup ## train and measure what docs/results.md reports: hours (DATA=camvid:DIR INIT=weights)
	@$(BIN)/python experiments/evidence.py --data $(DATA) $(if $(INIT),--init $(INIT))

test: setup ## run the tests that take no more than two minutes together
	@$(PYTEST) -m "not slow"

slow: setup ## run the other tests: exports, examples, killed processes, the page, nginx
	@$(PYTEST) -m slow

check: setup ## formatting, lint, types, which layer imports which, and the site of the docs
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet . && $(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache --no-logo >.lint-imports.txt 2>&1 || { cat .lint-imports.txt; rm .lint-imports.txt; exit 1; }
	@rm -f .lint-imports.txt
	@$(SITE)
	@echo "check: clean"

docs: setup ## the documentation as a site: open out/docs/index.html
	@$(SITE) && echo "wrote out/docs/index.html"

clean: ## remove what the targets made
	@rm -rf .venv out build *.egg-info .mypy_cache .ruff_cache .pytest_cache
