"""Federated namespaces of Apache DistributedLog: one namespace whose logs lie in several sub-namespaces.

Inside: a metadata store that shows them as one, and chooses the sub-namespace of a new log. Not inside:
making a namespace federated: Apache's ``bind -fns`` does it.
Entry point: ``FederatedStore``.
"""

from dlog.federation.federated_store import FederatedStore

__all__ = ["FederatedStore"]
