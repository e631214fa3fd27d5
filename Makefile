# `make demo` and `make test` set everything up on a bare machine: Python 3.11 or newer and a network are enough.
# The first of these that there is; `make demo PYTHON=…` names another.
PYTHON ?= $(shell for name in python3.11 python3.13 python3.12 python3; do command -v $$name && break; done)
BIN := .venv/bin
# Tests of small models are faster, and reproducible, with one thread a process.
export OMP_NUM_THREADS ?= 1
# What is imported is compiled once, by whoever imports it first: hundreds of processes read it after that.
export PYTHONDONTWRITEBYTECODE =
# Flower asks for nothing over a network.
export FLWR_TELEMETRY_ENABLED = 0
export FLWR_DISABLE_UPDATE_CHECK = 1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION = 1
export RAY_USAGE_STATS_ENABLED = 0

.PHONY: setup demo check test stress bench house notebooks docs clean

setup: .venv/ready

# With a pip of today: Python's own may be three years old, and takes twice the time, but it will do.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'hubbub needs Python 3.11 or newer: make PYTHON=…'; false; }
	$(PYTHON) -m venv .venv
	@echo 'Installing PyTorch and the rest into .venv: a minute or three, and a gigabyte or two.'
	-$(BIN)/python -m pip install -qq --upgrade pip
	$(BIN)/python -m pip install -qq --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/hubbub train examples/digits.toml
	@echo 'Open that report.html in a browser. Then change what you like:'
	@echo '  $(BIN)/hubbub new run.toml    # settings to start from'
	@echo '  $(BIN)/hubbub train run.toml'

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports & imports=$$!; $(BIN)/mypy && wait $$imports

# The checks run beside the tests, many of which wait for processes.
test: setup
	$(MAKE) check & checks=$$!; $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'; tests=$$?; wait $$checks && exit $$tests

stress: check
	$(BIN)/python -m pytest -n 2 --dist worksteal

bench: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	for script in benchmarks/[a-z]*.py; do $(BIN)/python $$script || status=1; done; exit $${status:-0}

# How large the library is, and how far it is from what it should be: by any Python that has what it needs, else by .venv.
house:
	@for python in $(BIN)/python python3 $(PYTHON); do \
		PYTHONPATH=src $$python -c 'import grimp, rich, sklearn, torch, hubbub.cli' 2>/dev/null || continue; \
		PYTHONPATH=src exec $$python scripts/house.py; \
	done; \
	$(MAKE) setup && $(BIN)/python scripts/house.py

# In place, outputs and pictures.
notebooks: setup
	$(BIN)/python notebooks/execute.py

# The site, which opens offline: build/site/index.html. Tests build it as well, and look at it.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv build dist src/*.egg-info
