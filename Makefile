# Each target creates .venv first if necessary. `make demo` and `make test` need only Python 3.11.

PYTHON := .venv/bin/python

.PHONY: help demo test interop check pythons soak bench docs dist proto lock clean setup setup-test

help:
	@echo "make demo    write lines, kill the writer, continue, read back, compare (embedded)"
	@echo "make test    run every check and test (ARGS=... goes to pytest)"
	@echo "make interop test beside Apache's originals: every row of docs/compatibility.md"
	@echo "make check   after each edit, within a minute: format, lint, types, house rules, the fast tests"
	@echo "make pythons run the fast tests with -O, and with each other version of Python that this machine has"
	@echo "make soak    long runs of sweeps (frames, damaged files and metadata), fuzzer, simulation; a new seed (ARGS='--minutes 600')"
	@echo "make bench   measure appends and catching up, beside the speed of the disk"
	@echo "make docs    build the site of docs/ and the API in build/site; a warning is an error"
	@echo "make dist    build the wheel and the sdist of the commit, twice, and try both in an empty environment"
	@echo "make proto   generate the protobuf modules from ledger/wire/*.proto"
	@echo "make lock    take new versions of the locked packages into .ci/requirements*.lock"
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

pythons: setup-test
	@.ci/pythons

soak: setup-test
	@$(PYTHON) -m tests.fuzz.soak $(ARGS)

bench: setup-test
	@$(PYTHON) -m dlog.cli.main bench append --level ledger --cluster 3 $(ARGS)
	@$(PYTHON) -m dlog.cli.main bench append --level stream --cluster 3 $(ARGS)
	@$(PYTHON) -m dlog.cli.main bench catchup --level stream --cluster 3 $(ARGS)

docs: setup-test
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet -f .ci/mkdocs.yml
	@echo "the site is in build/site"

dist: setup-test
	@$(PYTHON) -m tests.release

proto: setup
	@test -x .cache/protoc/bin/python || $(PYTHON) -m venv .cache/protoc
	@.cache/protoc/bin/python -m pip install --quiet 'grpcio-tools==1.62.*' 'setuptools<80'
	@.cache/protoc/bin/python ledger/wire/regenerate.py

lock: setup-test
	@.ci/lock

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
