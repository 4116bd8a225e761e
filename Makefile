# make demo, make test, make lint: each makes .venv first, once. Nothing is written outside this folder.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test lint

demo: $(STAMP)
	$(BIN)/trainfit estimate llama3-8b --batch 1 --seq 8192 --gpu h200

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# torch goes first, alone and exactly pinned: a range would make pip look for the newest CUDA build.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("trainfit needs Python 3.11 or later: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install -c constraints.txt setuptools
	$(BIN)/python -m pip install -c constraints.txt --no-build-isolation -e '.[hf,dev]'
	touch $@
