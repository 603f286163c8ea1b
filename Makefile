# Every target sets up what it needs by itself, on a bare Debian machine with Python 3.11.
PY := .venv/bin/python
STAMP := .venv/.ready
TRAINING := .venv/.training

.PHONY: setup setup-training demo test test-slow test-releases check lint types arch bench docs lock clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	@bash scripts/setup.sh
	@touch $(STAMP)

setup-training: $(TRAINING)  # torch and what trains with it, which only tests and examples/qlora need

$(TRAINING): $(STAMP) requirements-training.lock
	.venv/bin/pip install -q --disable-pip-version-check -r requirements-training.lock
	@touch $(TRAINING)

demo: setup
	$(PY) -m rankclock demo

test: setup-training
	$(PY) -m pytest -m "not slow"

test-slow: setup-training
	$(PY) -m pytest -m slow --timeout 600

test-releases: setup  # what is rendered, and the option tables, held to the parsers of newer Debian suites
	for suite in trixie sid; do \
	  bash scripts/unpack_release.sh $$suite .daemons-$$suite && \
	  RANKCLOCK_DAEMONS=$$PWD/.daemons-$$suite/bin $(PY) -m pytest tests/system/test_parsers.py || exit 1; \
	done

check: lint types arch test

lint: setup
	.venv/bin/ruff check . && .venv/bin/ruff format --check .

types: setup
	.venv/bin/mypy

arch: setup
	.venv/bin/lint-imports

bench: setup
	$(PY) -m benchmarks

docs: setup
	.venv/bin/pip install -q -r docs/requirements.lock && .venv/bin/mkdocs build --strict

lock:  # after changing dependencies: resolve anew in a clean environment and write both locks
	@bash scripts/lock.sh

clean:
	rm -rf .venv .daemons .daemons-* site build dist out
