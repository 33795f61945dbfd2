# Each target does its own set-up in .venv, and needs nothing but Python 3.10 or newer.
#   PYTHON=python3.13   the Python of the virtual environment
#   ARGS="..."          more arguments for the program that a target runs

PYTHON ?= python3
ARGS ?=
SECONDS ?= 60
QUICK ?=
SEED ?=
SEEDS ?= 20
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Faults are told from slowness by time, which a busy machine has none of; a ticket that repeats counts at once,
# and a hang, as no time-out ends a test that is run again.
PYTEST := tools/in-memory $(BIN)/python -m pytest -n 4 --dist worksteal --reruns 2 --rerun-show-tracebacks --rerun-except 'repeat|duplicate|twice|pytest-timeout'
# Of the example clients in other languages, each with its Debian packages.
LANGUAGES := npm php=php-cli,php-mysql go=golang-go,golang-github-go-sql-driver-mysql-dev
BUILD = SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation
CODE := $(wildcard sqla_tickets alembic_ext tests examples benchmarks tools/*.py noxfile.py)

.PHONY: help demo check lint types unit test test-all matrix chaos simulate bench docs screenshots dist clean
# What is compiled once is not compiled by each program that a test starts.
unexport PYTHONDONTWRITEBYTECODE
.NOTPARALLEL:
.DELETE_ON_ERROR:

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/demo.stamp ## a sharded photo site that loses a ticket server, in 15 seconds
	@$(BIN)/python examples/demo.py $(ARGS)

check: lint types unit ## lint, types and the tests that need no server

lint: $(VENV)/lint.stamp ## style, format and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache

types: $(VENV)/types.stamp ## mypy and pyright
	$(BIN)/python -m mypy $(CODE)
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright $(CODE)

unit: $(VENV)/tests.stamp ## the tests that need no server, in seconds
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/unit

test: $(VENV)/tests.stamp ## each promise once; the kinds of servers share the tests
	@tools/install-servers haproxy faketime
	$(PYTEST) --one-kind -m "not slow and not soak and not network" $(ARGS)

test-all: $(VENV)/tests.stamp ## each test on every kind of server, every driver, and long procedures
	@tools/install-servers haproxy faketime $(LANGUAGES)
	$(PYTEST) $(ARGS)

matrix: $(VENV)/matrix.stamp ## every Python, SQLAlchemy and Alembic; ARGS="-t corners" takes the ends of each range
	@tools/install-servers
	$(BIN)/python -m nox $(ARGS)

chaos: $(VENV)/tests.stamp ## kills, freezes and restores servers under load; SECONDS=600 for each kind of server
	@tools/install-servers
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) --servers mariadb,mysql $(ARGS)

simulate: $(VENV)/tests.stamp ## the package in simulated worlds; SEEDS=1000 of them, or the schedule of one: SEED=4711
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

bench: $(VENV)/bench.stamp ## figures, in more than an hour; QUICK=1 ends within five minutes
	@tools/install-servers redis-server
	$(BIN)/python -m benchmarks $(if $(QUICK),--scale quick --fresh) $(ARGS)

docs: $(VENV)/docs.stamp ## the documentation, in docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

screenshots: $(VENV)/bench.stamp ## the handbook's pictures, from real runs
	@tools/install-servers
	PYTHONPATH=. $(BIN)/python tools/screenshots.py $(ARGS)
	PYTHONPATH=. $(BIN)/python tools/pictures.py $(ARGS)

dist: $(VENV)/dist.stamp ## sdist and wheel in dist/, the wheel tried with the lowest versions
	rm -rf dist
	$(BUILD) -o dist . >/dev/null
	$(BIN)/python -m twine check --strict dist/*
	rm -rf $(VENV)/again && mkdir $(VENV)/again && git ls-files -z | tar -c --null -T - | tar -x -C $(VENV)/again
	$(BUILD) --sdist -o $(VENV)/again/dist $(VENV)/again >/dev/null
	cmp dist/*.tar.gz $(VENV)/again/dist/*.tar.gz  # the same bytes from any folder
	tar -tzf dist/*.tar.gz | cut -d/ -f2- | grep -v '^PKG-INFO$$' | sort >$(VENV)/sdist.txt
	git ls-files ':!.ci' | sort | diff - $(VENV)/sdist.txt  # what git has, and no more
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/smoke
	$(BIN)/uv pip install --quiet --python $(VENV)/smoke --resolution lowest-direct -r pyproject.toml dist/*.whl
	$(VENV)/smoke/bin/python -I tools/smoke.py

clean: ## removes .venv and all that was made
	rm -rf $(VENV) .hypothesis .nox .mypy_cache .pytest_cache .ruff_cache docs/_build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The package is used from the work tree, with the dependency group that the stamp is named after.
$(VENV)/%.stamp: $(VENV)/pip.stamp pyproject.toml
	@echo "Installing what 'make $(MAKECMDGOALS)' needs into $(VENV) ..."
	@$(PIP) --editable . --group $*
	@touch $@

# Debian's pip knows no dependency groups.
$(VENV)/pip.stamp: tools/make-venv
	@tools/make-venv $(PYTHON) $(VENV)
	@$(PIP) --upgrade 'pip>=25.1'
	@touch $@
