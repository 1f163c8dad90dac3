"""Awaiting one step of a repair, or a change of the metadata, and reporting the outcome to the machine.

Inside: the call that each step needs: placement, metadata store, a bookie, a pause.
Not inside: the decisions (``repair``), performing the actions that do not wait (``handle``).
Always: a step that is awaited to its end reports exactly one outcome; a cancelled step reports none.

Source: LedgerHandle.java (ensembleChangeLoop), MetadataUpdateLoop.java; docs/protocol.md 5.6, 5.7.
"""

from __future__ import annotations

from typing import assert_never

import trio

from ledger.catalog.catalog import Versioned
from ledger.catalog.metadata_update import update_metadata
from ledger.context import ClientContext
from ledger.errors import BookieError, LedgerError
from ledger.metadata_store.errors import MetadataError, SessionExpiredError
from ledger.runtime.statistics.names import ENSEMBLE_CHANGE, ENSEMBLE_CHANGES
from ledger.wire.messages import BookieInfoRequest
from ledger.write.actions import (
    Action,
    BeginRepair,
    ChooseReplacements,
    Probe,
    ReadMetadata,
    Step,
    Wait,
    WriteChange,
)
from ledger.write.repair import EnsembleRepair


async def take_step(
    step: Step, repair: EnsembleRepair, current: Versioned, context: ClientContext
) -> list[Action]:
    """Await a step; return the actions that follow from its outcome.

    If cancelled, an ensemble change may or may not be in the metadata.
    """
    match step:
        case BeginRepair():
            return repair.on_repair_due(trio.current_time())
        case ChooseReplacements():
            return await _choose(step, repair, current, context)
        case WriteChange():
            return await _change(step, repair, current, context)
        case Wait(pause_s=pause_s):
            with trio.move_on_after(pause_s):
                await context.membership.wait_change()
            return repair.on_waited(step, trio.current_time())
        case Probe(bookie=bookie, timeout_s=timeout_s):
            error: BookieError | None = None
            try:
                await context.transport.call(bookie, BookieInfoRequest(), timeout_s=timeout_s)
            except BookieError as exc:
                error = exc
            return repair.on_probe_answered(step, error, trio.current_time())
        case ReadMetadata(pause_s=pause_s):
            return await _read_metadata(pause_s, repair, current.ledger_id, context)
        case _:
            assert_never(step)


async def follow_metadata(repair: EnsembleRepair, ledger_id: int, context: ClientContext) -> list[Action]:
    """Return what follows once the metadata says that another client took the ledger over.

    An idle writer sends no add that a fenced bookie could refuse. Once all its bookies are replaced, no
    bookie refuses its adds any more. (apache/bookkeeper#4812)
    """
    while not repair.is_over:
        watch = trio.Event()
        try:
            found = await context.catalog.get(ledger_id, watch=watch)
        except LedgerError as exc:
            return repair.on_metadata_unreadable(exc)
        except SessionExpiredError:
            return []  # the next change of the metadata fails, and reports it
        except MetadataError:
            await trio.sleep(context.config.retry_backoff_max_s)
            continue
        if end := repair.on_metadata_seen(found.metadata):
            return end
        if not repair.is_over:
            await watch.wait()
    return []


async def _choose(
    step: ChooseReplacements, repair: EnsembleRepair, current: Versioned, context: ClientContext
) -> list[Action]:
    metadata, membership = current.metadata, context.membership
    suspects = set(membership.suspects)
    replacements, no_replacement = await context.placer.choose_replacements(
        step.ensemble,
        step.failed,
        metadata.write_quorum,
        metadata.ack_quorum,
        tried=[bookie for bookie in step.tried if bookie in suspects],
        allow_quarantined=step.allow_quarantined,
    )
    return repair.on_replacements_chosen(
        step, replacements, no_replacement, membership.suspects, trio.current_time()
    )


async def _change(
    step: WriteChange, repair: EnsembleRepair, current: Versioned, context: ClientContext
) -> list[Action]:
    try:
        with context.recorder.operation(ENSEMBLE_CHANGE, "change ensemble", ledger=current.ledger_id):
            updated = await update_metadata(
                context.catalog,
                current,
                step.change.apply,
                retry_timeout_s=context.config.unavailable_timeout_s,
            )
    except (LedgerError, MetadataError) as exc:
        return repair.on_change_failed(exc)
    context.recorder.counts[ENSEMBLE_CHANGES] += 1
    return repair.on_ensemble_changed(step, updated, trio.current_time())


async def _read_metadata(
    pause_s: float, repair: EnsembleRepair, ledger_id: int, context: ClientContext
) -> list[Action]:
    if pause_s:
        await trio.sleep(pause_s)
    try:
        # An ordinary read may miss a recovery that began long ago.
        found = await context.catalog.get_newest(ledger_id)
    except (LedgerError, MetadataError) as exc:
        return repair.on_metadata_read_failed(exc, trio.current_time())
    return repair.on_metadata_read(found.metadata, context.transport.losses, trio.current_time())
