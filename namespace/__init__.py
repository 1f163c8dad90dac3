"""The metadata store: a small tree of versioned nodes, with sessions, watches and locks."""

import logging

# A library logs nothing unless its program configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())
