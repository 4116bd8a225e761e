# make demo, make test, make lint: each makes .venv first, once. Nothing is written outside this folder.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --no-cache-dir install -q -c constraints.txt

.PHONY: demo test lint

demo: $(STAMP)
	$(BIN)/trainfit estimate llama3-8b --batch 1 --seq 8192 --gpu h200

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# torch goes first, alone and exactly pinned: with a range pip would look for the newest CUDA build, gigabytes of it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e '.[hf,dev]'
	touch $@
