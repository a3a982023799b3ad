# make demo    set up, then run a GEMM on this machine
# make test    set up, then run the tests
# make help    the rest

PYTHON ?= python3
VENV ?= .venv
PIPFLAGS ?= --quiet
PYTEST_ARGS ?=
PYTHONS ?= python3.10 python3.11 python3.12 python3.13

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# More workers than this cost more in imports than they gain.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all test-nightly test-changed fuzz test-gpu lint format check docs dist pythons clean distclean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | \
	  awk -F ':.*## ' '{ printf "make %-12s %s\n", $$1, $$2 }'

venv: $(STAMP) ## .venv with everything below needs (once, and again when its pins change)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo 'tvmtile needs Python 3.10 to 3.13: make PYTHON=/path/to/python3.12' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'Installing TVM, torch and the development tools into $(VENV) (a few minutes the first time)'
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install $(PIPFLAGS) \
	  -c constraints.txt -e '.[dev,torch]'
	@touch $@

demo: venv ## run examples/gemm.py
	@$(BIN)/python examples/gemm.py

test: venv ## the tests of the tier fast (PYTEST_ARGS='-k copy' narrows them)
	@$(PYTEST) $(PYTEST_ARGS)

test-all: venv ## of the tier full, as in CI: all parameters and architectures
	@$(PYTEST) --tier full $(PYTEST_ARGS)

test-nightly: venv ## all tests, and thousands of random programs; beside it: make pythons
	@$(PYTEST) --tier nightly --fuzz-seeds=2000 $(PYTEST_ARGS)

# The nearest first: so the workers take few at once.
test-changed: venv ## the tests that a change since main can affect, the nearest first
	@files=$$($(BIN)/python .ci/changed.py) || exit 1; \
	  test -z "$$files" || $(PYTEST) --dist load --maxschedchunk 4 $$files $(PYTEST_ARGS)

fuzz: venv ## 200 random programs on the CPU and on the emulators, and of each special kind some
	@$(PYTEST) tests/fuzz -k programs_on --tier full --fuzz-seeds=200 $(PYTEST_ARGS)

test-gpu: venv ## the tests on an NVIDIA GPU; where there is none, they compile their kernels
	@$(PYTEST) --maxprocesses 4 --tier full -k 'gpu or cuda' \
	  tests/test_numbers.py tests/gpu tests/cuda tests/ops/test_edges.py tests/tileop tests/metal $(PYTEST_ARGS)

lint: venv ## ruff check, ruff format --check, mypy, the layers of imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: venv ## let ruff fix and format what it can
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

check: lint test ## what a change must pass

docs: venv ## the site, to build/site; first, the tables of the README
	@$(BIN)/python docs/build.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: venv ## the wheel and the sdist, to dist, as the last tag's version, checked
	@rm -rf dist
	@$(BIN)/python -m hatchling build
	@$(BIN)/twine check --strict dist/*

# What depends on the Python that reads a kernel: its source, its code object, pickles, messages, commands and
# the pages. What a kernel then computes is TVM's and the same: one is run on each target.
PYTHONS_TESTS := $(addprefix tests/, \
  frontend/test_kernel.py frontend/test_module.py frontend/test_source.py frontend/test_traced.py messages \
  jit/test_arguments.py jit/test_artifacts.py jit/test_compiler.py jit/test_decorator.py \
  jit/test_key.py jit/test_lowering_view.py jit/test_processes.py jit/test_torch_operators.py cache \
  autotuner/test_child.py autotuner/test_configurations.py autotuner/test_decorator.py \
  autotuner/test_identity.py autotuner/test_saved.py ir/test_passes.py docs/test_pages.py \
  examples/test_readme.py test_main.py test_packaging.py) \
  $(addprefix tests/examples/test_examples.py::test_, \
  gemm_prints_the_kernel_its_lowering_its_error_and_its_speed \
  example_on_metal_agrees_with_its_float64_reference[gemm] \
  example_in_cudas_emulator_agrees_with_its_reference[moe_gemm])

# pyenv hides what it holds: it is told of all of them.
PYENV_VERSIONS = $(shell pyenv versions --bare 2>/dev/null | paste -sd: -)

pythons: $(addprefix pythons/,$(PYTHONS)) ## README and tests in a fresh environment of each Python

pythons/%:
	@rm -rf build/$@
	@PYENV_VERSION=$(PYENV_VERSIONS) $* -m venv build/$@
	@build/$@/bin/python -m pip install $(PIPFLAGS) -c constraints.txt '.[cuda,torch]' sybil
	@build/$@/bin/python .ci/readme.py
	@build/$@/bin/python -m pip install $(PIPFLAGS) -c constraints.txt -e '.[test]'
	@build/$@/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal --tier nightly $(PYTHONS_TESTS) $(PYTEST_ARGS)

clean: ## remove caches and build outputs
	@rm -rf build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## and the environment
	@rm -rf $(VENV)
