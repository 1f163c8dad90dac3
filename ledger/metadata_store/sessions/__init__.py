"""The life of a session with a metadata store.

``session`` is its state and its watches, ``renewing_store`` a store that opens another session when one has
expired. How a session is kept alive is not here: each store has its own way.
"""

from ledger.metadata_store.sessions.renewing_store import RenewingStore
from ledger.metadata_store.sessions.session import Session

__all__ = ["RenewingStore", "Session"]
