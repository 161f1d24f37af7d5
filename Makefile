# Everything runs in .venv, which the first command creates; all it needs beforehand is Python 3.11 or newer.
# Only relative paths are used, so the folder may have spaces in its name.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test lint format docs wheel clean

PYTHON ?=# an interpreter to build .venv with; by default the first one found that is new enough
JOBS ?= 2# test processes
PYTEST_ARGS ?=# for example: make test PYTEST_ARGS="tests/test_registry.py -k clash"

venv := .venv/bin/python

# Runs tools/install.py for one profile with the first suitable interpreter.
define install
@for python in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3.13 python3 python); do \
	if "$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
		exec "$$python" tools/install.py $(1); \
	fi; \
done; \
echo 'sparsebit needs Python 3.11 or newer with its venv module, and found none$(if $(PYTHON), at $(PYTHON)).' >&2; \
echo 'On Debian and Ubuntu: apt install python3.11 python3.11-venv. Elsewhere, name one:' >&2; \
echo '    make $@ PYTHON=/path/to/python3.11' >&2; \
exit 1
endef

help: ## list the commands
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile

demo: ## prune, quantize, export and run a small network on real images; writes outputs/demo/report.html
	$(call install,demo)
	@$(venv) -m sparsebit demo

test: lint ## run everything CI runs: ruff, mypy, tests and doctests
	$(venv) -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

lint: ## check style and types
	$(call install,test)
	$(venv) -m ruff check .
	$(venv) -m ruff format --check .
	$(venv) -m mypy

format: ## rewrite files in the project's style
	$(call install,test)
	$(venv) -m ruff check --fix .
	$(venv) -m ruff format .

docs: ## build the documentation site into site/; a broken link is an error
	$(call install,test)
	NO_MKDOCS_2_WARNING=1 $(venv) -m mkdocs build --strict

wheel: ## build the wheel and the source archive into dist/
	$(call install,test)
	rm -rf build  # setuptools would pack files that are gone since
	$(venv) -c "from setuptools import build_meta; build_meta.build_sdist('dist')"
	$(venv) -c "from setuptools import build_meta; build_meta.build_wheel('dist')"
	@ls dist

clean: ## remove .venv, caches and build outputs
	rm -rf .venv .venv.lock build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
	find sparsebit tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
