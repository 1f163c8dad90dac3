"""Opening ledgers by URI: in a cluster, or in a directory whose bookie one process at a time hosts.

Inside: opening a client by URI; the lock, the socket and the bookie of a directory.
Not inside: logs (``dlog``), the bookie (``bookie.embedded``, which ``bookie_lookup`` finds by name).
Entry points: ``open_client`` and ``open_deployment``.
"""

from ledger.deploy.deployment import Deployment, Opening, open_client, open_deployment

__all__ = ["Deployment", "Opening", "open_client", "open_deployment"]
