# Every target makes the virtual environment it needs: Python 3.11+, pip and make are enough.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test alone slow chaos lint lock bench postgres clean

demo: $(VENV)/.core
	@$(BIN)/verax demo

test: lint postgres alone
	$(BIN)/python -m pytest -n auto

# What a stranger installs, with nothing of the tests beside it: the command line starts and tells its story.
alone: pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)/alone
	$(VENV)/alone/bin/python -m pip install --quiet --disable-pip-version-check .
	cd $(VENV)/alone && bin/verax demo >/dev/null && bin/verax score "$(CURDIR)/tests/golden/wide.csv" --json >/dev/null

# Flower's simulation needs Ray, which no other test does.
slow: $(VENV)/.dev postgres
	@$(BIN)/python -c "import ray" 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[simulation]' || \
	  echo "Ray is not here and cannot be installed: the simulation's test is skipped"
	$(BIN)/python -m pytest -n auto -m slow

# Kill a process 1,000 times while it takes and settles rounds, and a server 200 times under load, and look for
# anything lost or doubled.
chaos: $(VENV)/.dev postgres
	$(BIN)/python tests/chaos.py --kills 1000 --db sqlite
	$(BIN)/python tests/chaos.py --kills 200 --db postgres
	$(BIN)/python tests/chaos_http.py --kills 200 --db sqlite
	$(BIN)/python tests/chaos_http.py --kills 200 --db postgres

# The tests start a throw-away PostgreSQL server; where they may, they install it first.
postgres:
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || test "$$(id -u)" != 0 || \
	  ! command -v apt-get >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y postgresql >/dev/null; } || \
	  echo "PostgreSQL is not here and cannot be installed: its tests are skipped"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit -q -ll -ii -r src
	$(BIN)/python deploy/audit.py

# What the service runs on, each package by its hashes; versions stay unless --upgrade is said.
lock: $(VENV)/.dev
	$(BIN)/uv pip compile pyproject.toml --extra service --extra postgres --universal --python-version 3.11 --quiet \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header -o deploy/requirements.lock

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/whole.py
	$(BIN)/python benchmarks/scoring.py
	$(BIN)/python benchmarks/shards.py
	$(BIN)/python benchmarks/sparse.py
	$(BIN)/python benchmarks/ledger.py
	$(BIN)/python benchmarks/service.py

$(VENV)/.core: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
