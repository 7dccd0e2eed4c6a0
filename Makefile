# `make report` and `make test` set everything up on a fresh machine: Python 3.11+ and make are all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: report test test-all test-wheel test-oldest lint types notebooks check-notebooks docs gallery setup clean

report: $(READY)  ## the textbook model's report, in report/, and the default model's, in report/default/
	$(BIN)/interp report --model textbook --out report --see default/report.html
	$(BIN)/interp report --out report/default

# one process a core: threads that spin while they wait would take it from the others
PYTEST := OMP_WAIT_POLICY=$${OMP_WAIT_POLICY:-PASSIVE} $(BIN)/python -m pytest --numprocesses auto --dist worksteal
test: $(READY)  ## the tests that CI runs: all that are quick, and one slow test of each kind
	$(PYTEST) -m "not slow or smoke"

test-all: check-notebooks test-wheel test-oldest  ## all tests, of the wheel and of the oldest dependencies too, and all notebooks
	$(PYTEST)

# a folder elsewhere with the tests, the wheel and an environment of its own: no sources, no pages
AWAY = set -e; away=$$(mktemp -d); trap 'rm -rf $$away' EXIT; cp -r tests pyproject.toml $$away; rm -rf build; \
  $(BIN)/python -m build --wheel --outdir $$away . > $$away/build.log || { cat $$away/build.log; exit 1; }; \
  $(PYTHON) -m venv $$away/venv; pip="$$away/venv/bin/python -m pip install --quiet --constraint"; wheel=$$(ls $$away/*.whl)
test-wheel: $(READY)  ## the installed wheel, with what it depends on alone: three commands; then, with the extra `test`, the quick tests
	$(AWAY); $$pip constraints.txt torch; $$pip constraints.txt $$wheel; (cd $$away && venv/bin/interp models > models.txt \
	  && venv/bin/interp view "The boy met the old lady." --out view.html \
	  && venv/bin/interp report --model textbook --corpus tales:20 --pairs 10 --out report); \
	$$pip constraints.txt "$$wheel[test]"; cd $$away && venv/bin/python -m pytest --numprocesses auto -m "not slow"

OLDEST := tests/interp tests/analyses
test-oldest: $(READY)  ## quick tests with the oldest versions that pyproject.toml allows; that old, they warn of each other
	$(AWAY); oldest=$$PWD/constraints-oldest.txt; $$pip $$oldest $$wheel; \
	$$pip $$oldest pytest pytest-xdist beartype scikit-learn==1.5 build cryptography; \
	cd $$away && venv/bin/python -m pytest --numprocesses auto -m "not slow" -W default $(OLDEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/pyright

notebooks: $(READY)  ## run the notebooks again, in place
	$(BIN)/python notebooks/run.py

check-notebooks: $(READY)  ## run copies of them, or of NOTEBOOKS="first_look patching", and leave the committed ones alone
	$(BIN)/python notebooks/run.py --check $(NOTEBOOKS)

docs: $(READY)  ## the documentation's pages, in site/, with live pages where `make gallery` made them; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

GALLERY := build/gallery
gallery: $(READY)  ## the live pages of the documentation, docs/live; some five minutes
	mkdir -p docs/live
	$(BIN)/interp report --model textbook --out $(GALLERY)/report
	$(BIN)/interp view "The sailor praised the cook because he cooked well." --model textbook --labels $(GALLERY)/report --out $(GALLERY)/view.html
	$(BIN)/interp patch --clean "The king was tired, because" --answer he --corrupt "The queen was tired, because" --wrong she --out $(GALLERY)/patch
	$(BIN)/interp experiments --out $(GALLERY)/experiments
	$(BIN)/interp probes --out $(GALLERY)/probes
	$(BIN)/interp compare default minilm --out $(GALLERY)/compare
	cp $(GALLERY)/view.html docs/live
	for page in report patch experiments probes compare; do cp $(GALLERY)/$$page/report.html docs/live/$$page.html; done

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]"
	touch $(READY)

clean:
	rm -rf $(VENV) build report site *.egg-info .pytest_cache .ruff_cache
