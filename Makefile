# make serve   set everything up (virtual environment, CPU torch, model) and serve SmolLM2 on 127.0.0.1:8000
# make test    set everything up and run the tests
# make help    the rest
#
# Set-up happens once, and again when pyproject.toml changes. Packages come from wherever your pip takes them.

PORT ?= 8000
MODEL ?= smollm2
ARGS ?=
VENV ?= .venv
# Builds of torch to try, first to last: one for CPUs alone is a tenth of the size, where your package index has it.
TORCH ?= torch==2.13.0+cpu torch==2.13.0
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && echo $$python && break; done)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
# Where pip's words go; all of them are shown if it fails.
ASIDE = >$(VENV)/pip.log 2>&1 || { cat $(VENV)/pip.log >&2; exit 1; }

.PHONY: help venv dev serve chat test slow fuzz soak browser lint format clean
.DELETE_ON_ERROR:

help:
	@echo 'make serve [PORT=8000] [MODEL=smollm2] [ARGS="--drafts 5"]   set up and serve a model on 127.0.0.1'
	@echo 'make chat  [MODEL=smollm2] [ARGS=...]                        set up and chat in the terminal'
	@echo 'make test  [ARGS="-k stop"]                                  set up and run the tests'
	@echo 'make slow  [ARGS=...]                                        the tests that take minutes'
	@echo 'make fuzz  [ARGS=...]                                        search longer where hypothesis looks for faults'
	@echo 'make soak  [ARGS="--hours 8 --model smollm2"]                mixed traffic, aborts and kills; minutes by default'
	@echo 'make browser                                                 the live page in Chromium, which must be there'
	@echo 'make lint, make format                                       check, or mend, how the code looks'
	@echo 'make bench-NAME [ARGS=...]                                   run benchmarks/NAME.py; ARGS=--help explains it'
	@echo 'make venv                                                    set up $(VENV) alone'

venv: $(READY)

dev: $(READY_DEV)

serve: $(READY)
	@$(BIN)/overdrive serve $(MODEL) --host 127.0.0.1 --port $(PORT) $(ARGS)

chat: $(READY)
	@$(BIN)/overdrive chat --model $(MODEL) $(ARGS)

test: $(READY_DEV)
	@$(BIN)/python -m pytest $(ARGS)

slow: $(READY_DEV)
	@$(BIN)/python -m pytest -m slow $(ARGS)

# Parsers of what strangers bring, and the engine as a state machine, with 100 times the examples of `make test`.
fuzz: $(READY_DEV)
	@$(BIN)/python -m pytest --hypothesis-profile=long tests/fuzz tests/loop/test_engine_machine.py tests/serve/test_schema.py --timeout=0 $(ARGS)

soak: $(READY_DEV)
	@$(BIN)/python benchmarks/soak.py $(ARGS)

browser: $(READY_DEV)
	@$(PIP) install --quiet --editable '.[browser]'
	@$(BIN)/python -m pytest -m browser $(ARGS)

lint: $(READY_DEV)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/mypy

format: $(READY_DEV)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench-%: benchmarks/%.py $(READY_DEV)
	@$(BIN)/python $< $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache

# torch first and by itself, so that the package finds it there and takes no other build.
$(READY): pyproject.toml | $(BIN)/python
	@echo "Installing PyTorch and the other packages overdrive needs into $(VENV): a few minutes, the first time"
	@torch() { for build in $(TORCH); do $(PIP) install "$$build" && return; done; return 1; }; \
		{ torch && $(PIP) install --editable .; } $(ASIDE)
	@touch $@

$(READY_DEV): pyproject.toml $(READY)
	@echo "Installing what tests and checks need: a minute or two, the first time"
	@$(PIP) install --editable '.[dev]' $(ASIDE)
	@touch $@

# Some systems ship Python without ensurepip; their pip can furnish the environment from outside.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "overdrive needs Python 3.11 or 3.12; name one with PYTHON=..." >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) >/dev/null || { \
		$(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $(VENV) install --quiet pip; }
