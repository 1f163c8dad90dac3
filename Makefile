# Each target makes .venv first, if it has to. `make demo` and `make test` need Python 3.11 and nothing else.

PYTHON := .venv/bin/python

.PHONY: help demo test interop check bench proto clean setup setup-test

help:
	@echo "make demo    the main job on real input, embedded: write, SIGKILL, go on, read back, compare"
	@echo "make test    every test (ARGS=... goes to pytest)"
	@echo "make interop Apache's originals beside ours: every row of docs/compatibility.md, with a verdict"
	@echo "make check   the fast part: format, lint, types, house rules, unit, property, contracts"
	@echo "make bench   how fast appends, tailing and catching up are here, against the disk's own floor"
	@echo "make proto   generate the protobuf modules anew from ledger/wire/*.proto"
	@echo "make clean   remove caches and build results (not .venv)"

setup:
	@.ci/setup base

setup-test:
	@.ci/setup test

demo: setup
	@$(PYTHON) -m dlog.cli.main demo $(ARGS)

test: setup-test
	@.ci/test $(ARGS)

interop: setup-test
	@.ci/interop $(ARGS)

check: setup-test
	@$(PYTHON) tests/check.py

bench: setup-test
	@$(PYTHON) -m dlog.cli.main bench append --level ledger --cluster 3 $(ARGS)
	@$(PYTHON) -m dlog.cli.main bench append --level stream --cluster 3 $(ARGS)
	@$(PYTHON) -m dlog.cli.main bench catchup --level stream --cluster 3 $(ARGS)

proto: setup
	@test -x .cache/protoc/bin/python || $(PYTHON) -m venv .cache/protoc
	@.cache/protoc/bin/python -m pip install --quiet 'grpcio-tools==1.62.*' 'setuptools<80'
	@.cache/protoc/bin/python ledger/wire/regenerate.py

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
