# make demo, make test, make lint: each makes .venv first, once. Nothing is written outside this folder.
# make fuzz: the executor on 500 random blocks, of which make test has 25.
# make accuracy, make pictures: the parts of docs/ that scripts write.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
PIP := $(BIN)/python -m pip --no-cache-dir install -q -c constraints.txt

.PHONY: demo test fuzz lint accuracy pictures

demo: $(STAMP)
	$(BIN)/trainfit estimate llama3-8b --batch 1 --seq 8192 --gpu h200
	mkdir -p build
	$(BIN)/trainfit plan llama3-8b --batch 2 --gpu h200 -o build/demo.json --report build/demo.html
	-$(BIN)/python -m webbrowser "file://$(CURDIR)/build/demo.html"
	@echo "If no browser has opened, open build/demo.html in one: a single file, nothing is fetched."

test: $(STAMP)
	$(BIN)/python -m pytest -n 2

fuzz: $(STAMP)
	TRAINFIT_FUZZ=500 $(BIN)/python -m pytest -n 2 tests/test_apply_fuzz.py

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

accuracy: $(STAMP)
	$(BIN)/python docs/make_accuracy.py

pictures: $(STAMP)
	$(BIN)/python docs/make_pictures.py

# torch goes first, alone and exactly pinned: with a range pip would look for the newest CUDA build, gigabytes of it.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) setuptools
	$(PIP) --no-build-isolation -e '.[hf,dev]'
	touch $@
