"""One storage server: what Apache calls a bookie."""

import logging

# A library says nothing unless its program asks to hear it.
logging.getLogger(__name__).addHandler(logging.NullHandler())
