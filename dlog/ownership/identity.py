"""Giving an identity to a log that has none, before the first ledger with a mark is made for it.

Inside: that step, and finding the identity that the log had before Apache's library renamed it.
Not inside: the node (``namespace.log_identity``).
Always: a log whose segments have an identity gets this one again, so that its own ledgers stay its own.

Source: our own; docs/metadata.md 16.18.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dlog.ownership.mark import LedgerMark
from ledger.client import LedgerClient
from ledger.errors import MetadataFormatError, NoSuchLedgerError
from namespace.log_identity import ensure_log_id
from namespace.log_metadata import LogMetadata
from namespace.segments.segment import LogSegment


async def with_identity(
    metadata: LogMetadata, client: LedgerClient, segments: Sequence[LogSegment]
) -> LogMetadata:
    """The metadata of a log that has an identity from now on. If it has one already, nothing is read.

    Args:
        segments: Of the log, in order.

    Raises: what ``ensure_log_id`` raises.
    """
    if metadata.log_id is not None:
        return metadata
    wanted = await _identity_of(client, segments[-1].ledger_id) if segments else None
    log_id = await ensure_log_id(metadata.log, wanted)
    return attrs.evolve(metadata, log_id=log_id)


async def _identity_of(client: LedgerClient, ledger_id: int) -> str | None:
    try:
        mark = LedgerMark.of((await client.stored(ledger_id)).metadata.custom)
    except (NoSuchLedgerError, MetadataFormatError):
        return None
    return None if mark is None else mark.log_id
