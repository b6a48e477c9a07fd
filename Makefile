# engine-builder's everyday commands; `make help` lists them.

PYTHON ?= python3
BIN := .venv/bin
SCRIPTS := containers/reference/make-base

# The platform of the runtime layer's wheels, as builder/image/wheels.py installs them.
PLATFORM := x86_64-manylinux_2_36

# uv doesn't read pip's variables: hand on what it knows by another name.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
endif
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
INSTALL := $(BIN)/uv pip install --python $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types layers programs docs bench lock-runtime clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: .venv/serve ## build, publish and serve the smallest recipe, and ask it a question
	@$(BIN)/python -m builder.cli.demo

test: programs .venv/dev ## install what the tests need (as root) and run them all
	$(BIN)/python -m pytest

check: lint types layers ## lint, types and layers, without the tests

lint: .venv/dev ## ruff: rules and format
	$(BIN)/ruff check . $(SCRIPTS)
	$(BIN)/ruff format --check . $(SCRIPTS)

types: .venv/dev ## mypy --strict
	$(BIN)/mypy

layers: .venv/dev ## what may import what
	$(BIN)/lint-imports

docs: .venv/dev ## generate the recipe's JSON Schema and reference, and the output in the README
	$(BIN)/python -m builder schema > docs/recipe.schema.json
	$(BIN)/python -m builder schema --format markdown > docs/recipe.md
	$(BIN)/python -m tests.readme

bench: .venv/dev ## how fast plans and conversions are, beside snakemake, cp and ModelOpt
	$(BIN)/python bench/plan.py
	$(BIN)/python bench/checkpoint.py

lock-runtime: .venv/dev ## pin the newest wheels for the runtime layer of images
	for version in 3.11 3.12; do \
	  $(BIN)/uv pip compile --quiet --upgrade builder/image/requirements.in \
	    --excludes builder/image/requirements-excluded.txt --output-file builder/image/requirements-$$version.txt \
	    --generate-hashes --no-annotate --custom-compile-command "make lock-runtime" --only-binary :all: \
	    --python-version $$version --python-platform $(PLATFORM) || exit 1; \
	done

clean: ## remove the environment, the caches and what was built here
	rm -rf .venv .demo .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist

# The environment, and its stamps: one per set of extras, renewed when the project file changes.

.venv/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' || \
	  { echo "make: $(PYTHON) isn't Python 3.11 or 3.12: try make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "make: $(PYTHON) has no venv module: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

.venv/serve: pyproject.toml | .venv/bin/uv
	$(INSTALL) --editable '.[serve]'
	@touch $@

.venv/dev: pyproject.toml | .venv/bin/uv
	$(INSTALL) --editable '.[serve,dev]'
	@touch $@ .venv/serve

# Programs that the integration tests start themselves, as program:package of Debian.
PROGRAMS := debootstrap:debootstrap docker-registry:docker-registry dockerd:docker.io ip:iproute2 skopeo:skopeo

programs:
	@PATH="$$PATH:/usr/sbin:/sbin"; missing=""; \
	for pair in $(PROGRAMS); do command -v $${pair%:*} >/dev/null || missing="$$missing $${pair#*:}"; done; \
	[ -z "$$missing" ] && exit 0; \
	[ "$$(id -u)" = 0 ] || { echo "make: the tests need$$missing: apt-get install$$missing" >&2; exit 1; }; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing
