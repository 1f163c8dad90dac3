"""A BookKeeper bookie: one server that stores entries of ledgers."""

import logging

# The package logs nothing unless the program adds a handler of its own.
logging.getLogger(__name__).addHandler(logging.NullHandler())
