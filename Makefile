# Every target builds .venv by itself. .github/workflows/test.yml runs `make test`, `make test-all` and `make dist`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# One thread a process: the tests run in two processes, and speed is judged by ratios.
export OMP_NUM_THREADS ?= 1
# Compiled modules are kept, whatever the shell says: importing torch and its friends takes half the time.
export PYTHONDONTWRITEBYTECODE =

.PHONY: test test-all style lint browser bench demo docs dist results clean

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

PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal
# mypy takes a minute of one core, so it runs beside the tests. Its report comes after theirs, and both must succeed.
define beside_types
@$(BIN)/mypy >$(VENV)/types.txt 2>&1 & types=$$!; \
$(1); tests=$$?; \
wait $$types; types=$$?; cat $(VENV)/types.txt; \
test $$tests -eq 0 && test $$types -eq 0
endef

test: style browser
	$(call beside_types,$(PYTEST) -m "not slow")

# With the tests that take long, of which `make test` has a faster one of each kind. The tests of the core run once more
# with the instructions that every processor has: no result may depend on the processor.
test-all: style browser
	$(call beside_types,$(PYTEST))
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE $(PYTEST) -m "not slow" tests/core

style: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style
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

# Write docs/results.md from results/*.jsonl; `python -m tools.results add RUNS` first appends finished runs.
results: $(VENV)/.ready
	$(BIN)/python -m tools.results

clean:
	rm -rf $(VENV) runs site dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
