# make demo    trains the built-in model on a local cluster
# make test    lint, types and all tests
# make quick   the tests that need no TensorFlow, in some ten seconds
#
# Tests of real processes mostly wait: `make test TEST_PROCESSES=2` runs two at a time, on a machine with nothing else to do.
#
# Each makes .venv first. Its stamps say what is installed, so that the second time pip is not called and no network is
# needed. Paths are relative and pip runs as a module, so that a blank in this folder's path does no harm.

PY := .venv/bin/python
TEST_PROCESSES := 0
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))

.DELETE_ON_ERROR:
.PHONY: demo test quick clean

demo: .venv/installed
	$(PY) -m ps_train

test: .venv/installed-test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m pytest -n $(TEST_PROCESSES) --dist worksteal

quick: .venv/installed-test
	$(PY) -m pytest -q tests/pure

clean:
	rm -rf .venv

.venv/installed: setup.py | .venv/bin/python
	$(PY) -m pip install --quiet -e .
	touch $@

.venv/installed-test: setup.py pyproject.toml | .venv/bin/python
	$(PY) -m pip install --quiet -e '.[test]'
	touch $@ .venv/installed

.venv/bin/python:
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.10; do \
	  if "$$python" -c '$(SUITABLE)' 2>/dev/null; then \
	    "$$python" -m venv .venv && exit; rm -rf .venv; exit 1; \
	  fi; \
	done; \
	echo 'No Python 3.10 to 3.13 with venv found. On Debian: apt-get install python3-venv; or make PYTHON=PATH' >&2; \
	exit 1
