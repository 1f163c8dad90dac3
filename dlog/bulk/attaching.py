"""Beginning a batch, attaching its segments in one transaction, giving it up.

Inside: the state that a batch may follow, the transaction over all of its logs, deciding whether it was
applied if its reply was lost.
Not inside: locks and rights (``dlog.operations.batches``), records (``detached``).
Always: the segments of a batch and its number get into the metadata together or not at all; the transaction
is conditional on the nodes that every writer changes when it starts or completes a segment, so a batch that
was overtaken changes nothing, and a writer that was overtaken by a batch is fenced; only closed ledgers are
attached, and only those that say in the metadata store that they were made for this batch (``ledgers``); a
batch whose number is there already is never attached again; a ledger is deleted only after a write to the
node that its attaching would need.

Source: our own; docs/bulk.md. The nodes: DistributedLog, BKLogWriteHandler.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import attrs

from dlog.bulk.errors import BatchOvertakenError, ForeignLedgerError
from dlog.bulk.ledgers import BatchLedgers, OfBatch, check_unnamed, is_adopted, read_ledgers
from dlog.bulk.plan import (
    SEGMENTS_MAX,
    AttachedBatch,
    BatchPlan,
    DetachedSegment,
    completed_segments,
)
from dlog.errors import LogMetadataError, LogNotFoundError
from dlog.format.record import POSITION_MAX
from dlog.ownership import delete_ledger
from ledger.client import LedgerClient
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import Check, Create, MetadataStore, Operation, Put
from ledger.runtime.tasks.task_errors import for_each
from namespace.dlsn import DLSN
from namespace.heal_node import Heal, ledgers_of_segment, read_heals
from namespace.log_metadata import LogMetadata, next_segment_seqno
from namespace.log_nodes import LogNodes
from namespace.logs import open_log
from namespace.properties import LogProperties, read_properties
from namespace.properties.values import changed, encode_properties
from namespace.segment_nodes import list_segments
from namespace.segments.segment import LogSegment, encode_segment

_NUMBER = re.compile("[0-9]{1,19}")


@attrs.frozen
class BatchPlace:
    """Where a batch is attached. ``store`` is the session that holds the locks of its logs."""

    store: MetadataStore
    client: LedgerClient
    namespace_path: str
    first_segment_seqno: int
    wall_ms: Callable[[], int]

    def nodes(self, name: str) -> LogNodes:
        """The nodes of a log of the namespace."""
        return LogNodes(self.store, self.namespace_path, name)


async def last_number(log: LogNodes, plan: BatchPlan) -> int | None:
    """The number of the last batch of the series that was attached; None if there is none, or no series.

    Raises:
        LogNotFoundError
        LogMetadataError: The property is no number.
    """
    return _number_in(await read_properties(log), plan)


def _number_in(properties: LogProperties, plan: BatchPlan) -> int | None:
    if plan.series is None:
        return None
    text = properties.values.get(plan.property_key)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise LogMetadataError(
            f"log {plan.record_log!r}: property {plan.property_key!r} is {text[:40]!r}, no number of a batch."
            " Nothing was changed; `dlog log properties` shows and removes it"
        )
    return int(text)


async def attach(
    place: BatchPlace,
    plan: BatchPlan,
    segments: Sequence[DetachedSegment],
    changes: Mapping[str, str],
    *,
    adopts: bool = False,
) -> AttachedBatch:
    """Attach the segments; see ``Namespace.batches.attach``. The locks are held. Repeating it is safe."""
    _check(plan, segments)
    while True:
        await place.store.sync(place.namespace_path)
        properties = await read_properties(place.nodes(plan.record_log))
        number = _number_in(properties, plan)
        logs = {name: await _LogNow.read(place, plan, name) for name in sorted(plan.logs)}
        found = _found(segments, logs)
        if number is not None and number >= plan.number:
            return found
        log_ids = {name: log.metadata.log_id for name, log in logs.items()}
        rule = BatchLedgers(place.namespace_path, plan, log_ids, adopts)
        if found.positions:
            await _check_found(place, rule, segments, logs)
            return found
        for name, log in logs.items():
            if (why := plan.logs[name].difference(log.metadata)) is not None:
                raise BatchOvertakenError(plan.name, name, why)
        await _check_ledgers(place, rule, segments)
        added = {name: log.following(place, segments) for name, log in logs.items()}
        operations = _properties_stored(place, plan, properties, changes)
        for name, log in logs.items():
            operations += log.operations(added[name])
        try:
            await place.store.commit(operations)
        except (BadVersionError, NodeExistsError, NoNodeError):
            # A log has changed, or only the properties, or an attempt whose reply was lost was applied after
            # all. Each is seen by reading again; only other properties lead here once more.
            continue
        return AttachedBatch(
            positions={name: _positions(new) for name, new in added.items() if new}, is_repeated=False
        )


def _check(plan: BatchPlan, segments: Sequence[DetachedSegment]) -> None:
    if len(segments) > SEGMENTS_MAX:
        raise ValueError(f"batch {plan.name}: {len(segments)} segments; at most {SEGMENTS_MAX} in one batch")
    if unknown := sorted({segment.log for segment in segments} - set(plan.logs)):
        raise ValueError(f"batch {plan.name}: segments for logs that it was not begun for: {unknown}")
    if len({segment.ledger_id for segment in segments}) != len(segments):
        raise ValueError(f"batch {plan.name}: one segment is given twice")
    for each in segments:
        numbers = (each.ledger_id, each.txid, each.last_txid, each.last_entry_id, each.last_slot_id)
        if not 0 < each.record_count <= POSITION_MAX or not all(-1 <= number < 2**63 for number in numbers):
            raise ValueError(f"batch {plan.name}: no writer makes a segment with these numbers: {each}")


async def _check_ledgers(place: BatchPlace, rule: BatchLedgers, segments: Sequence[DetachedSegment]) -> None:
    plan, adopted = rule.plan, list[DetachedSegment]()
    ledgers = await read_ledgers(place.client, plan, segments)
    for segment in segments:
        ledger = ledgers.get(segment.ledger_id)
        if ledger is None:
            raise BatchOvertakenError(
                plan.name, segment.log, f"ledger {segment.ledger_id} of the batch was deleted"
            )
        if (reason := rule.attach_refusal(segment, ledger)) is not None:
            raise ForeignLedgerError(plan.name, segment.log, segment.ledger_id, reason)
        if is_adopted(ledger):
            adopted.append(segment)
        metadata = ledger.metadata
        if not metadata.is_closed or metadata.last_entry_id != segment.last_entry_id:
            raise LogMetadataError(
                f"batch {plan.name}: ledger {segment.ledger_id} is not closed at entry"
                f" {segment.last_entry_id}, as its writer reported; nothing was changed"
            )
    if adopted:
        await check_unnamed(place.store, place.client, rule, adopted)


async def _check_found(
    place: BatchPlace, rule: BatchLedgers, segments: Sequence[DetachedSegment], logs: Mapping[str, _LogNow]
) -> None:
    """Raise unless a log names these segments because an attempt of this batch attached them all."""
    plan, ledgers = rule.plan, await read_ledgers(place.client, rule.plan, segments)
    for segment in segments:
        ledger = ledgers.get(segment.ledger_id)
        if ledger is None:
            continue  # attached and purged since
        is_there = bool(logs[segment.log].among([segment.ledger_id]))
        reason = (
            rule.refusal(segment, ledger) if is_there else "segments given with it are in the log already"
        )
        if reason is not None:
            raise ForeignLedgerError(plan.name, segment.log, segment.ledger_id, reason)


def _properties_stored(
    place: BatchPlace, plan: BatchPlan, properties: LogProperties, changes: Mapping[str, str]
) -> list[Operation]:
    if plan.series is not None:
        changes = {**changes, plan.property_key: str(plan.number)}
    if not changes:
        return []
    path = place.nodes(plan.record_log).properties_path
    data = encode_properties(changed(properties.values, changes))
    return [Create(path, data) if properties.version is None else Put(path, data, properties.version)]


def _positions(segments: Sequence[LogSegment]) -> tuple[DLSN, DLSN]:
    return segments[0].first_dlsn, segments[-1].last_dlsn


@attrs.frozen
class _LogNow:
    """A log of the batch, as it is now."""

    metadata: LogMetadata
    segments: tuple[LogSegment, ...]
    heals: tuple[Heal, ...]

    @classmethod
    async def read(cls, place: BatchPlace, plan: BatchPlan, name: str) -> _LogNow:
        # The versions first: what is listed is at least as new, and the commit is conditional on them.
        metadata = await open_log(place.nodes(name))
        listed = await list_segments(place.nodes(name))
        # The heals last: one that replaces a ledger after the list was read is no harm.
        heals = (await read_heals(place.nodes(name))).heals
        return cls(metadata, listed.segments, heals)

    def among(self, ledger_ids: Collection[int]) -> list[LogSegment]:
        """The log's segments that are in one of these ledgers, or were before a heal replaced it."""
        wanted = set(ledger_ids)
        return [
            each
            for each in self.segments
            if wanted & ledgers_of_segment(self.heals, each.segment_seqno, each.ledger_id)
        ]

    def following(self, place: BatchPlace, segments: Sequence[DetachedSegment]) -> list[LogSegment]:
        """The log's part of the batch, as it is stored."""
        mine = [segment for segment in segments if segment.log == self.metadata.log.name]
        if not mine:
            return []
        return completed_segments(
            mine,
            first_seqno=next_segment_seqno(
                self.metadata, self.segments, first_seqno=place.first_segment_seqno
            ),
            before=self.segments[-1] if self.segments else None,
            completed_ms=place.wall_ms(),
        )

    def operations(self, added: Sequence[LogSegment]) -> list[Operation]:
        """The log's part of the transaction. A log without new segments must be unchanged, too."""
        now, log = self.metadata, self.metadata.log
        # A move to another namespace closes a log by this node.
        operations: list[Operation] = [Check(log.version_path, now.marks_version)]
        if not added:
            return operations
        allocated = b"" if now.allocated_ledger_id is None else b"%d" % now.allocated_ledger_id
        operations += [
            # Written with what it holds: from now on, no ledger with an older stamp gets into the log.
            Put(log.allocation_path, allocated, now.allocation_version),
            *(Create(log.segment_path(each.name), encode_segment(each)) for each in added),
            Put(log.segments_path, b"%d" % added[-1].segment_seqno, now.max_segment_seqno_version),
            Put(
                log.max_txid_path,
                b"%d" % max(now.max_txid, added[-1].last_txid),
                now.max_txid_version,
            ),
        ]
        return operations


def _found(segments: Sequence[DetachedSegment], logs: dict[str, _LogNow]) -> AttachedBatch:
    """The result if the batch is there: attached by a call before, whose reply was lost, or by another."""
    ours = {segment.ledger_id for segment in segments}
    positions = {}
    for name, log in logs.items():
        if mine := log.among(ours):
            positions[name] = _positions(mine)
    return AttachedBatch(positions=positions, is_repeated=not positions and bool(ours))


async def abandon(place: BatchPlace, plan: BatchPlan, segments: Sequence[DetachedSegment]) -> list[int]:
    """Delete the segments that no log names; see ``Namespace.batches.abandon``. The locks are held.

    Returns the ids of the deleted ledgers. A ledger of the batch that does not exist counts as deleted.
    """
    await place.store.sync(place.namespace_path)
    doomed: list[DetachedSegment] = []
    for name, planned in sorted(plan.logs.items()):
        path = place.nodes(name).allocation_path
        while True:
            try:
                node = await place.store.get(path)
            except NoNodeError:
                raise LogNotFoundError(name, f"there is no node {path}") from None
            try:
                # Whatever it holds stays. An attaching that read it before fails from now on.
                await place.store.put(path, node.value, expected=node.stat.version)
            except BadVersionError:
                continue
            break
        if node.stat.created_ms != planned.allocation_created_ms:
            continue  # the log was renamed, perhaps with these ledgers, and this is another one
        named = {each.ledger_id for each in (await list_segments(place.nodes(name))).segments}
        # A heal keeps the ledger that it replaced for readers, and deletes it itself.
        heals = (await read_heals(place.nodes(name))).heals
        named |= {ledger_id for each in heals for ledger_id in (each.old, each.new)}
        doomed += [each for each in segments if each.log == name and each.ledger_id not in named]
    rule = BatchLedgers(place.namespace_path, plan, {})
    ledgers = await read_ledgers(place.client, plan, doomed)
    claims = {each.ledger_id: OfBatch(place.nodes(each.log), rule, each) for each in doomed}
    for ledger_id, ledger in ledgers.items():
        # All of them before the first deletion: a call that is wrong about one ledger deletes none.
        if (reason := await claims[ledger_id].refusal(ledger)) is not None:
            raise ForeignLedgerError(plan.name, claims[ledger_id].segment.log, ledger_id, reason)

    kept: set[int] = set()

    async def delete(ledger_id: int) -> None:
        if await delete_ledger(place.client, ledger_id, claims[ledger_id]) is not None:
            kept.add(ledger_id)

    await for_each(delete, claims)
    return [each for each in claims if each not in kept]
