# Every target builds .venv by itself. .github/workflows/test.yml runs `make test` and `make dist`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# One thread a process: the tests run in two processes, and speed is judged by ratios.
export OMP_NUM_THREADS ?= 1
# Compiled modules are kept, whatever the shell says: importing torch and its friends takes half the time.
export PYTHONDONTWRITEBYTECODE =

.PHONY: test test-all lint browser bench demo docs dist clean

INSTALL = PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -e

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The command `gasam` alone, for the demo.
$(VENV)/.lab: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[lab]'
	touch $@

$(VENV)/.ready: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev,docs]'
	touch $(VENV)/.lab $@

test: lint browser
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

# With the tests that take long; `make test` has a faster one of each kind.
test-all: lint browser
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of pages need a browser. This never fails: without one they are skipped, with a reason.
browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	{ test "$$(id -u)" = 0 && DEBIAN_FRONTEND=noninteractive timeout 300 sh -c \
	'apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium' >/dev/null 2>&1; } || \
	echo "no browser was found or installed, so its tests are skipped: install chromium to run them"

demo: $(VENV)/.lab
	$(BIN)/gasam compare

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks

docs: $(VENV)/.ready
	$(BIN)/zensical build --clean --strict

# Build the wheel and the source archive, and try them in an empty environment.
dist: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m tools.check_distribution dist

clean:
	rm -rf $(VENV) runs site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
