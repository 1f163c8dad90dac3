"""A BookKeeper bookie: one server that stores entries of ledgers."""

import logging

from ledger.runtime.green_threads import check_import as _check_import

_check_import()

# The package logs nothing unless the program adds a handler of its own.
logging.getLogger(__name__).addHandler(logging.NullHandler())
