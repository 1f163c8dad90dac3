"""Which step of a promotion comes next, from what both sides store.

Inside: two pure functions, one for continuing and one for undoing. Not inside: doing a step (``promoter``).
Always: at most one side takes records. The target becomes active only while the source is handed over, and
the source is opened again only after the target can no longer become active: activating and cancelling are
two conditional writes of the same node of the target, so that one of them fails.

Source: our own; docs/promotion.md.
"""

from __future__ import annotations

import enum

from dlog.errors import LogExistsError, LogMetadataError, PromotionError
from dlog.promotion.record import SourcePhase, SourceRecord, TargetPhase, TargetRecord


class Step(enum.Enum):
    """One step. Each ends with one transaction on one side; a crash before it leaves the phase as it was."""

    BEGIN = "write the record at the source"
    CREATE_TARGET = "create the log at the target, closed"
    COPY = "copy segments, then hand over"
    FINISH = "copy the rest, then open the target"
    CONCLUDE = "note at the source that the target is open"
    CANCEL_TARGET = "make sure that the target never opens"
    REOPEN_SOURCE = "let the source take records"
    DELETE_TARGET = "delete the copies"
    FORGET = "delete the record at the source"


def next_step(
    log: str, source: SourceRecord | None, target: TargetRecord | None, *, target_exists: bool
) -> Step | None:
    """The next step towards the target; None if the promotion is complete.

    Args:
        target: The record at the target; None if it has none.
        target_exists: There is a log of this name at the target.

    Raises:
        LogExistsError: The target has a log of this name that is no copy of this promotion.
        PromotionError: The promotion is being undone.
        LogMetadataError: The two sides contradict each other.
    """
    is_ours = source is not None and target is not None and source.id == target.id
    if source is None or source.phase is SourcePhase.COPYING:
        if target_exists and not is_ours:
            raise LogExistsError(log)
        if source is None:
            return Step.BEGIN
    if source.phase is SourcePhase.UNDOING or (is_ours and target and target.phase is TargetPhase.UNDOING):
        raise PromotionError(log, "its promotion is being undone; finish that first with --undo")
    if source.phase is SourcePhase.DONE:
        return None
    if not is_ours or target is None:
        if source.phase is SourcePhase.COPYING:
            return Step.CREATE_TARGET
        raise LogMetadataError(
            f"log {log!r}: it was handed over to {source.target}, but there is no copy of it; nothing was"
            " changed. Restore the metadata there, or open the log here again with --undo"
        )
    if target.phase is TargetPhase.ACTIVE:
        if source.phase is SourcePhase.COPYING:
            raise LogMetadataError(
                f"log {log!r}: {source.target} takes its records, but it was never handed over; one of the"
                " two metadata stores is an older copy. Nothing was changed"
            )
        return Step.CONCLUDE
    return Step.COPY if source.phase is SourcePhase.COPYING else Step.FINISH


def next_undo_step(log: str, source: SourceRecord | None, target: TargetRecord | None) -> Step | None:
    """The next step back; None if nothing is left of the promotion.

    Args:
        target: The record at the target, if it is one of this source.

    Raises:
        PromotionError: The target takes records: a promotion cannot be undone then.
    """
    is_ours = source is not None and target is not None and source.id == target.id
    if (source is not None and source.phase is SourcePhase.DONE) or (
        (is_ours or source is None) and target is not None and target.phase is TargetPhase.ACTIVE
    ):
        raise PromotionError(
            log,
            "the hand-over has happened: the log takes its records at the target, so the promotion cannot be"
            " undone",
        )
    if is_ours or source is None:
        if target is not None and target.phase is TargetPhase.COPYING:
            return Step.CANCEL_TARGET
    else:
        target = None  # of another promotion: not touched
    if source is not None and source.phase is not SourcePhase.UNDOING:
        return Step.REOPEN_SOURCE
    if target is not None:
        return Step.DELETE_TARGET
    return None if source is None else Step.FORGET
