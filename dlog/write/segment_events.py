"""The events in the life of a log's segments and of its writer.

Inside: their texts, names and fields (``docs/events.md``). Not inside: the life (``segment_roller``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dlog.statistics_names import SEGMENTS_DEGRADED
from ledger.replication_asked import AskedReplication
from ledger.runtime.events import event
from namespace.segments.segment import LogSegment

if TYPE_CHECKING:
    from ledger.client import LedgerClient
    from ledger.handle import WriteHandle

logger = logging.getLogger("dlog.write.segment_roller")


def segment_begun(log: str, segment: LogSegment) -> None:
    """A segment is in use."""
    number, ledger_id = segment.segment_seqno, segment.ledger_id
    extra = event("segment.begun", log=log, segment=number, ledger=ledger_id)
    logger.info("log %s: segment %d begins, in ledger %d", log, number, ledger_id, extra=extra)


def segment_degraded(
    log: str,
    handle: WriteHandle,
    asked: AskedReplication,
    *,
    number: int | None = None,
    remedy: str = "the next segment gets all once they are there",
) -> None:
    """A segment is in use on fewer bookies than the namespace's settings ask for.

    Args:
        number: Of the segment; None if it gets one only when it is attached to the log.
        remedy: How it ends.
    """
    bookies = handle.metadata.last_ensemble.bookies
    logger.warning(
        "log %s: segment %s has only %d of %d bookies (%s); %s",
        log,
        f"in ledger {handle.ledger_id}" if number is None else number,
        len(bookies),
        asked.ensemble_size,
        ", ".join(bookies),
        remedy,
        extra=event(
            "segment.degraded",
            log=log,
            segment=number,
            ledger=handle.ledger_id,
            bookies=list(bookies),
            asked=asked.ensemble_size,
        ),
    )


def count_degraded(client: LedgerClient, log: str, handle: WriteHandle, number: int | None = None) -> None:
    """Count and report a segment that no writer of the log makes, if it has fewer bookies than asked."""
    asked = AskedReplication.of(handle.metadata.custom)
    if asked is not None:
        client.recorder.counts[SEGMENTS_DEGRADED] += 1
        remedy = "`dlog log heal` gives the log the other copies once they are there"
        segment_degraded(log, handle, asked, number=number, remedy=remedy)


def segment_completed(log: str, number: int, records: int) -> None:
    """A segment is closed, and its node says so."""
    extra = event("segment.completed", log=log, segment=number, records=records)
    logger.info("log %s: segment %d is complete, with %d records", log, number, records, extra=extra)


def roll_failed(log: str, number: int, error: Exception) -> None:
    """The segment takes more records, because the next one could not be made."""
    extra = event("segment.roll_failed", log=log, segment=number, error=error)
    logger.warning("log %s: segment %d not rolled: %s", log, number, error, extra=extra)


def completion_failed(log: str, number: int, error: Exception) -> None:
    """A segment is closed, but its node does not say so yet."""
    extra = event("segment.completion_failed", log=log, segment=number, error=error)
    logger.warning("log %s: segment %d not completed yet: %s", log, number, error, extra=extra)


def segment_failed(log: str, number: int, cause: object) -> None:
    """The segment's ledger failed; its recovery begins."""
    extra = event("segment.failed", log=log, segment=number, error=cause)
    logger.warning("log %s: segment %d failed: %s", log, number, cause, extra=extra)


def writer_stopped(log: str, error: Exception) -> None:
    """The writer takes no more records."""
    extra = event("writer.stopped", log=log, error=error)
    logger.info("the writer has stopped: %s", error, extra=extra)
