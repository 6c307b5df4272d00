# Everything a contributor runs. Needs Python 3.11 or newer, make and git; all else goes into .venv.
# Nothing here uses the network once `make setup` has run for the present lock file.

PYTHON ?= python3
ARGS ?=
JOBS ?= 3
SYSTEM_POSTGRES ?= /usr/lib/postgresql/15/bin
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# What is left in the caller's shell must not choose another interpreter or other packages, nor make every start of
# Python compile everything again.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test test-postgresql drill check format bench lock system-deps

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'ARGS="..." passes arguments on: make run ARGS="--port 9000", make test ARGS="-k settings"'

setup: $(STAMP) ## Make .venv and install the locked packages (again only when the lock or pyproject.toml changed)

$(STAMP): requirements-dev.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 \
	  || { echo 'Laneway needs Python 3.11 or newer, and there is no $(PYTHON); say which: make PYTHON=/path/to/python'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Laneway needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1); say another: make PYTHON=python3.12"; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
	$(BIN)/uv pip sync --quiet --require-hashes --python $(BIN)/python requirements-dev.lock
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python -e .
	@touch $@

run: $(STAMP) ## Start the service
	@exec $(BIN)/laneway serve $(ARGS)

test: $(STAMP) ## Run all tests but the drill
	$(BIN)/python -m pytest -m 'not drill' -n $(JOBS) --dist worksteal $(ARGS)

test-postgresql: $(STAMP) ## Run all tests that have a store on the PostgreSQL of the system's packages
	TEST_POSTGRES_BIN=$(SYSTEM_POSTGRES) $(BIN)/python -m pytest -m 'not drill' -n $(JOBS) --dist worksteal \
	  --store postgresql --stored $(ARGS)

drill: $(STAMP) ## Kill a service again and again and account for every run
	@$(BIN)/python -m pytest -m drill -n $(JOBS) --dist worksteal $(ARGS); code=$$?; \
	  if [ $$code -eq 5 ]; then echo 'There is no drill in this build.'; else exit $$code; fi

check: $(STAMP) ## Format, lint, types, and who may import whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Measure accept latency and streaming throughput
	$(BIN)/python -m benchmarks $(ARGS)

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url

lock: ## Write both lock files anew from pyproject.toml (ARGS=--upgrade takes newer versions)
	$(LOCK) $(ARGS) --output-file requirements.lock pyproject.toml
	$(LOCK) $(ARGS) --group dev --output-file requirements-dev.lock pyproject.toml

system-deps: ## Install what comes from the system's packages: PostgreSQL 15 and Chromium
	@missing=; \
	if test -x $(SYSTEM_POSTGRES)/postgres; then echo 'PostgreSQL is there.'; else missing=" postgresql-15"; fi; \
	if command -v chromium >/dev/null; then echo 'Chromium is there.'; else missing="$$missing chromium"; fi; \
	if test -z "$$missing"; then :; \
	elif command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
	  apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing; \
	else echo "Not there:$$missing. Install it as root for \`make test-postgresql\` and the tests of pages; the others need none of it."; fi
