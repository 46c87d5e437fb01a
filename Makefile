# Every target builds .venv by itself; `make test` is all that CI runs.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# One thread a process: the tests run in two processes, and speed is judged by ratios.
export OMP_NUM_THREADS ?= 1
# Compiled modules are kept, whatever the shell says: importing torch and its friends takes half the time.
export PYTHONDONTWRITEBYTECODE =

.PHONY: test test-all lint bench demo docs clean

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -e '.[dev,docs]'
	touch $@

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# With the tests that take long; `make test` has a faster one of each kind.
test-all: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(VENV)/.ready
	$(BIN)/gasam compare

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks

docs: $(VENV)/.ready
	$(BIN)/zensical build --clean

clean:
	rm -rf $(VENV) runs site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
