"""What the metadata store says about the ledgers of a bookie.

Inside: which of them exist and name this bookie, what follows for those that do not, the digest type, the
rights of peers. Not inside: the entries.
Entry point: ``LiveLedgers``.
"""

from bookie.ledger_metadata.live_ledgers import LiveLedgers

__all__ = ["LiveLedgers"]
