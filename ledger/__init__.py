"""One ledger: write, read, recover. The client side of Apache BookKeeper."""

import logging

# A library says nothing unless its program asks to hear it.
logging.getLogger(__name__).addHandler(logging.NullHandler())
