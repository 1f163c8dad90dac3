"""The events in the life of a log's segments and of its writer.

Inside: their texts, names and fields (``docs/events.md``). Not inside: the life (``segment_roller``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ledger.replication_asked import AskedReplication
from ledger.runtime.events import event
from namespace.segments.segment import LogSegment

logger = logging.getLogger("dlog.write.segment_roller")


def segment_begun(log: str, segment: LogSegment) -> None:
    """A segment is in use."""
    number, ledger_id = segment.segment_seqno, segment.ledger_id
    extra = event("segment.begun", log=log, segment=number, ledger=ledger_id)
    logger.info("log %s: segment %d begins, in ledger %d", log, number, ledger_id, extra=extra)


def segment_degraded(log: str, segment: LogSegment, bookies: Sequence[str], asked: AskedReplication) -> None:
    """A segment is in use on fewer bookies than the namespace's settings ask for."""
    number, ledger_id = segment.segment_seqno, segment.ledger_id
    logger.warning(
        "log %s: segment %d has only %d of %d bookies (%s); the next segment gets all once they are there",
        log,
        number,
        len(bookies),
        asked.ensemble_size,
        ", ".join(bookies),
        extra=event(
            "segment.degraded",
            log=log,
            segment=number,
            ledger=ledger_id,
            bookies=list(bookies),
            asked=asked.ensemble_size,
        ),
    )


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
