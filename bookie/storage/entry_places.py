"""Where entries lie, for readers of the entry log itself.

Inside: values. Not inside: finding the places (``entry_reads``), the reply that names them (``requests``).
"""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen
class EntryPlace:
    """Where consecutive entries lie in one entry log."""

    directory: int  # the index of the ledger directory
    log_id: int
    offset: int  # of the length of the first entry
    starts: tuple[int, ...]  # from there to the length of each entry, ascending


IdentifyLog = Callable[[EntryPlace], tuple[int, int]]
"""Device and inode of an entry log. Raises ``OSError``."""
