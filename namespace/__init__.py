"""Where facts are recorded, and what things are called: the metadata store and the names kept in it."""

import logging

# A library says nothing unless its program asks to hear it.
logging.getLogger(__name__).addHandler(logging.NullHandler())
