"""The namespace of DistributedLog: which logs there are, and what the metadata store keeps about each.

Inside: bindings, names and URIs, the nodes of a log and of its segments, cursors, properties, policies,
access control, federated namespaces; each change of a log is one conditional transaction.
Not inside: the metadata store (``ledger.metadata_store``), the records (``dlog``).
Begin with ``log_nodes``, ``log_metadata`` and ``logs``.
"""

import logging

# A library logs nothing unless its program configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())
