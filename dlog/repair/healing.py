"""Giving a segment that began on fewer bookies than asked all its replicas, in a new ledger.

Inside: the steps for each segment: a new ledger, the copy, the check of every replica, the exchange.
Not inside: the heal node (``namespace.heal_node``), deleting old ledgers (``dlog.ownership.replaced``).
Always: entry n of the old ledger is entry n of the new one, with the same bytes, so every record keeps its
position; the segment's node is changed only after each replica of the copy was read and found good; one
transaction changes it and says that the old ledger is kept, conditional on the segment as it was copied. An
interrupted heal leaves the log as it was, or healed; the next one deletes what it left.

1. Create the new ledger, with the log's mark and the stamp of its ``allocation`` node.
2. Name it in the heal node, if ``allocation`` is still as in the stamp: the search for orphans keeps it now.
   Both are one transaction, unless the ledgers are in another metadata store.
3. Copy, close, compare both ledgers, read every replica.
4. Exchange the ledger in the segment's node, and note until when the old one is kept.

Source: our own; docs/metadata.md 16.19.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

import attrs
import trio

from dlog.errors import LogFencedError, LogUnavailableError, translated
from dlog.ownership import (
    LedgerMark,
    MadeHere,
    delete_ledger,
    delete_replaced,
    drop_unfinished,
    with_identity,
)
from dlog.read.entries import open_segment_ledger
from dlog.repair.log_reading import LogPlace
from dlog.write.segment_copy import SegmentCopy
from ledger.errors import NoSuchLedgerError
from ledger.handle import WriteHandle
from ledger.ledger_spec import LedgerSpec
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from ledger.metadata_store.store import Check, Create, Operation
from ledger.replication_asked import ASKED_KEY, AskedReplication
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from namespace.heal_node import Heal, HealState, read_heals
from namespace.logs import open_log
from namespace.segment_nodes import list_segments, replace_ledger
from namespace.segments.segment import LogSegment, TruncationStatus

logger = get_logger(__name__)

ATTEMPTS_MAX = 20  # to exchange a ledger; each is lost to another client that changed the log meanwhile
LAST_REPLICA_S = 30.0  # for the bookie that takes the last entries last


async def heal_log(
    place: LogPlace,
    *,
    keep_s: float,
    now_ms: Callable[[], int],
    on_copied: Callable[[int], None] = lambda _: None,
) -> list[LogSegment]:
    """Heal the completed segments of a log that began on fewer bookies than asked; return them, healed.

    It may run beside a writer and readers. If cancelled or failing, some segments may be healed: call it
    again. Of two at the same time, at least one fails.

    Args:
        keep_s: How long the old ledgers are kept for readers that have them open.
        on_copied: Called with the bytes of each entry copied.

    Raises:
        LogNotFoundError, CorruptLogError
        TooFewBookiesError: There are fewer bookies than asked.
        LogUnavailableError: Bookies are out of reach, or did not take every copy; or another client changed
            the log meanwhile.
    """
    healed: list[LogSegment] = []
    with translated(place.log.name, "healing it"):
        await open_log(place.log)  # for its errors
        await drop_unfinished(place.log, place.client)
        await delete_replaced(place.log, place.client, now_ms=now_ms())
        for segment in (await list_segments(place.log)).segments:
            if segment.in_progress or segment.truncation is TruncationStatus.TRUNCATED:
                continue
            try:
                ledger = await place.client.metadata(segment.ledger_id)
            except NoSuchLedgerError:
                continue  # purged just now; or lost, which ``check_log`` reports
            asked = AskedReplication.of(ledger.custom)
            if asked is not None and ledger.is_closed:
                healed.append(await _heal(place, segment, ledger, asked, keep_s, now_ms, on_copied))
    return healed


async def _heal(
    place: LogPlace,
    segment: LogSegment,
    ledger: LedgerMetadata,
    asked: AskedReplication,
    keep_s: float,
    now_ms: Callable[[], int],
    on_copied: Callable[[int], None],
) -> LogSegment:
    handle = await _new_ledger(place, segment, ledger, asked)
    try:
        copy = SegmentCopy(
            place.log.name, segment, place.client, handle, shared_with_java=False, on_copied=on_copied
        )
        opened = await open_segment_ledger(place.client, segment.ledger_id, place.password, recover=False)
        async with opened as original:
            await copy.copy_up_to(original, original.last_confirmed)
            with trio.move_on_after(LAST_REPLICA_S):
                await handle.wait_bytes_in_flight_below(1)
            await copy.finish(original, segment)
        await _check_replicas(place, handle, ledger, asked)
        return await _exchange(place, segment, handle.ledger_id, now_ms() + int(keep_s * 1000))
    finally:
        handle.abandon()


async def _new_ledger(
    place: LogPlace, segment: LogSegment, ledger: LedgerMetadata, asked: AskedReplication
) -> WriteHandle:
    """A new ledger that the heal node names."""
    log, client = place.log, place.client
    metadata = await with_identity(await open_log(log), client, [segment])
    node = await read_heals(log)
    mark = LedgerMark(log.namespace_path, log.name, metadata.log_id)
    custom = {key: value for key, value in ledger.custom.items() if key != ASKED_KEY}
    custom |= mark.custom | metadata.allocation_stamp

    async def register(ledger_id: int, created: Create | None = None) -> None:
        heals = [*node.heals, Heal(segment.segment_seqno, segment.ledger_id, ledger_id, HealState.COPYING)]
        operations: list[Operation] = [] if created is None else [created]
        # A ledger gets into a log only while this node is as in its stamp (``find_orphans``).
        operations.append(Check(log.allocation_path, metadata.allocation_version))
        try:
            await session.commit([*operations, node.operation(log, heals)])
        except (BadVersionError, NodeExistsError, NoNodeError) as exc:
            if created is not None and exc.path.startswith(client.root):
                raise  # about the ledger
            raise LogUnavailableError(
                f"log {place.log.name!r}: another client changed it when its heal began; try again"
            ) from exc

    session = log.store.current_session()
    is_one_session = client.is_in_session(session)
    spec = LedgerSpec(
        ensemble_size=asked.ensemble_size,
        write_quorum=asked.write_quorum,
        ack_quorum=asked.ack_quorum,
        digest_type=ledger.digest_type,
        password=ledger.password or place.password or b"",
        custom=custom,
    )
    handle = await client.create_from(spec, commit=register if is_one_session else None)
    if not is_one_session:
        try:
            await register(handle.ledger_id)
        except LogUnavailableError:
            handle.abandon()
            await delete_ledger(client, handle.ledger_id, MadeHere(custom))
            raise
        except BaseException:
            handle.abandon()
            raise
    return handle


async def _check_replicas(
    place: LogPlace, handle: WriteHandle, ledger: LedgerMetadata, asked: AskedReplication
) -> None:
    """Read every replica of the copy; raise unless each is good."""
    check = await place.client.replica_check(handle.ledger_id, password=place.password or b"")
    copied = check.metadata
    if (copied.last_entry_id, copied.length_bytes) != (ledger.last_entry_id, ledger.length_bytes):
        raise LogUnavailableError(
            f"log {place.log.name!r}: ledger {handle.ledger_id} ends at entry {copied.last_entry_id} after"
            f" {copied.length_bytes} bytes, and its original at entry {ledger.last_entry_id} after"
            f" {ledger.length_bytes}; nothing was changed"
        )
    async with aclosing(check.entries(0, copied.last_entry_id)) as entries:
        async for entry in entries:
            if entry.faults or entry.replicas < asked.write_quorum:
                faulty = ", ".join(f"{each.bookie}: {each.fault.value}" for each in entry.faults)
                raise LogUnavailableError(
                    f"log {place.log.name!r}: entry {entry.entry_id} of the copy has {entry.replicas} of"
                    f" {asked.write_quorum} replicas ({faulty}); nothing was changed, try again"
                )


async def _exchange(place: LogPlace, segment: LogSegment, new: int, until_ms: int) -> LogSegment:
    """Change the ledger in the segment's node."""
    log = place.log
    for _ in range(ATTEMPTS_MAX):
        metadata = await open_log(log)
        listed = (await list_segments(log)).segments
        now = next((each for each in listed if each.ledger_id == segment.ledger_id), None)
        if now is None or now.truncation is TruncationStatus.TRUNCATED:
            break
        node = await read_heals(log)
        mine = Heal(segment.segment_seqno, segment.ledger_id, new, HealState.COPYING)
        if mine not in node.heals:
            break
        heals = [
            attrs.evolve(each, state=HealState.KEPT, until_ms=until_ms) if each == mine else each
            for each in node.heals
        ]
        healed = attrs.evolve(now, ledger_id=new)
        try:
            await replace_ledger(metadata, now, healed, node.operation(log, heals))
        except LogFencedError:
            continue  # another client truncated, purged or rolled the log since it was read
        logger.info(
            "log %s: segment %d is in ledger %d now, with all its replicas, instead of ledger %d",
            log.name,
            segment.segment_seqno,
            new,
            segment.ledger_id,
            extra=event(
                "segment.healed",
                log=log.name,
                segment=segment.segment_seqno,
                ledger=new,
                replaced=segment.ledger_id,
                until_ms=until_ms,
            ),
        )
        return healed
    raise LogUnavailableError(
        f"log {place.log.name!r}: another client truncated segment {segment.segment_seqno}, or heals it, too;"
        " nothing was changed"
    )
