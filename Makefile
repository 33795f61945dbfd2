# `make demo` and `make test` need nothing but Python and make: they do their own set-up.
#   PYTHON=python3.13   the Python of the virtual environment
#   ARGS="..."          more arguments for the demo, the tests or the benchmark
#   SECONDS=600         how long `make chaos` draws from each kind of server
#   QUICK=1             a short `make bench`

PYTHON ?= python3
ARGS ?=
SECONDS ?= 60
QUICK ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Faults are told from slowness by time, which a busy machine has none of; a ticket that repeats counts at once.
SECOND_TRY := --reruns 2 --rerun-except 'repeat|duplicate|twice'
CODE := $(wildcard sqla_tickets alembic_ext sqla_tickets_cli tests examples benchmarks tools/*.py tools/release/*.py noxfile.py)

.PHONY: demo test lint types docs screenshots matrix bench chaos dist release-check clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

demo: $(VENV)/demo.stamp
	@$(BIN)/python examples/demo.py $(ARGS)

test: $(VENV)/tests.stamp
	@tools/install-servers haproxy faketime
	$(BIN)/python -m pytest -n 2 $(SECOND_TRY) $(ARGS)

lint: $(VENV)/lint.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/types.stamp
	$(BIN)/python -m mypy $(CODE)
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright $(CODE)

docs: $(VENV)/docs.stamp
	$(BIN)/towncrier build --draft --version next >/dev/null
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# The pictures of the handbook, from real runs.
screenshots: $(VENV)/tests.stamp
	@tools/install-servers
	PYTHONPATH=. $(BIN)/python tools/screenshots.py

# Every supported Python, SQLAlchemy and Alembic; ARGS="-s corners" takes the ends of each range.
matrix: $(VENV)/matrix.stamp
	@tools/install-servers
	$(BIN)/python -m nox $(ARGS)

# QUICK=1 ends within five minutes, and says little about times; the whole takes more than an hour.
bench: $(VENV)/bench.stamp
	@tools/install-servers redis-server
	$(BIN)/python -m benchmarks $(if $(QUICK),--scale quick --fresh) $(ARGS)

# Servers are killed, frozen and restored while processes draw; SECONDS for each kind of server.
chaos: $(VENV)/tests.stamp
	@tools/install-servers
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) --servers mariadb,mysql $(ARGS)

# Into dist/, with the same bytes from every folder and machine.
dist: $(VENV)/dist.stamp
	$(BIN)/python tools/release/check.py

# And tried as users get it: in an empty environment with the lowest versions, and by type checkers.
release-check: $(VENV)/release.stamp
	$(BIN)/python tools/release/check.py --try

clean:
	rm -rf $(VENV) .nox .mypy_cache .pytest_cache .ruff_cache docs/_build dist
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
