# `make report` and `make test` set everything up on a fresh machine: Python 3.11+ and make are all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: report test test-all lint types notebooks check-notebooks docs gallery setup clean

report: $(READY)  ## the textbook model's report, in report/, and the default model's, in report/default/
	$(BIN)/interp report --model textbook --out report --see default/report.html
	$(BIN)/interp report --out report/default

# one process a core: threads that spin while they wait would take it from the others
PYTEST := OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-PASSIVE} $(BIN)/python -m pytest --numprocesses auto --dist worksteal
test: $(READY)  ## the tests that CI runs: all that are quick, and one slow test of each kind
	$(PYTEST) -m "not slow or smoke"

test-all: check-notebooks  ## all tests, and all notebooks
	$(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

notebooks: $(READY)  ## run the notebooks again, in place
	$(BIN)/python notebooks/run.py

check-notebooks: $(READY)  ## run copies of them, or of NOTEBOOKS="first_look patching", and leave the committed ones alone
	$(BIN)/python notebooks/run.py --check $(NOTEBOOKS)

docs: $(READY)  ## the documentation's pages, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

GALLERY := site/gallery
gallery: docs  ## the same, with the live pages that docs/gallery.md leads to; some six minutes
	$(BIN)/interp report --out $(GALLERY)/report
	$(BIN)/interp view "The boy met the old lady at the door, and the old lady met the dog." --labels $(GALLERY)/report --out $(GALLERY)/view.html
	$(BIN)/interp patch --clean "Once upon a time, Tom went to the park. He played with" \
	  --corrupt "Once upon a time, Amy went to the park. He played with" --answer his --wrong her --out $(GALLERY)/patch
	$(BIN)/interp experiments --out $(GALLERY)/experiments
	$(BIN)/interp probes --out $(GALLERY)/probes
	$(BIN)/interp compare default minilm --out $(GALLERY)/compare

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]"
	touch $(READY)

clean:
	rm -rf $(VENV) report site *.egg-info .pytest_cache .ruff_cache
