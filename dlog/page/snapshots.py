"""What the page shows, as JSON documents: the cluster, the logs, one log, records, reasons.

Inside: the questions to metadata store and bookies, and their bounds. Not inside: rates (``rates``), paths.
Always: nothing is changed; a document has at most the numbers of items named below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import trio

from dlog.errors import DLogError
from dlog.explain import collect_bookie, collect_ledger, collect_log, explain
from dlog.explain.collecting import bookie_spaces, collect_cluster, racks_of
from dlog.format.record import Record
from dlog.namespace_handle import Namespace
from dlog.read.positioning import EARLIEST
from ledger.balancing import running_balance
from ledger.client import BookieSpace, LedgerClient
from ledger.errors import LedgerMetadataError, NoSuchLedgerError
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.replication_asked import AskedReplication
from ledger.runtime.clock import wall_ms
from namespace.dlsn import DLSN

LOGS_MAX = 60
SEGMENTS_MAX = 60
MARKS_MAX = 60
RECORDS_MAX = 50
PAYLOAD_BYTES_MAX = 2048
AT_ONCE = 8
READ_S = 5.0

RatesOf = Callable[[str, Mapping[str, int]], dict[str, float | None]]


class BadQuestionError(Exception):
    """The query of a request is wrong."""


async def overview(namespace: Namespace, rates_of: RatesOf) -> dict[str, Any]:
    """The bookies with their disks and rates, auto-recovery, and the marked ledgers."""
    client, is_directory = namespace.context.client, _is_directory(namespace)
    cluster = await collect_cluster(client, is_directory=is_directory)
    marked, balance = [], None
    if cluster.has_recovery:
        balance = await running_balance(client.context.catalog.store.current_session(), client.root)
        marked = await UnderReplicatedLedgers(
            client.context.catalog.store.current_session(), client.root
        ).marked()
    spaces = await bookie_spaces(client, cluster.registered)
    racks = await racks_of(client, cluster.registered)
    entries = await _open_entries(namespace)
    rates = rates_of("bookies", {f"{ledger}": last for ledger, (last, _) in entries.items()})
    per_bookie = _rates_of_bookies(entries, rates)
    bookies = []
    for bookie in sorted(cluster.registered | cluster.with_cookie):
        space = spaces.get(bookie)
        state = "read-only" if bookie in cluster.readonly else "writable"
        if bookie not in cluster.registered:
            state = "away"
        # The ledgers of a bookie that is away or silent may be written without it.
        is_heard = state != "away" and not isinstance(space, str)
        bookies.append(
            {
                "bookie": bookie,
                "state": "silent" if isinstance(space, str) else state,
                "rack": racks.get(bookie),
                "silence": space if isinstance(space, str) else None,
                "total_bytes": space.total_bytes if isinstance(space, BookieSpace) else None,
                "free_bytes": space.free_bytes if isinstance(space, BookieSpace) else None,
                "entries_per_s": per_bookie.get(bookie, 0.0) if is_heard else None,
                "missing_ledgers": sum(bookie in each.mark.replicas for each in marked),
            }
        )
    return {
        "namespace": namespace.uri,
        "at_ms": wall_ms(),
        "bookies": bookies,
        "under_replicated": len(marked),
        "under_replicated_ledgers": [
            {"ledger_id": each.ledger_id, "missing": list(each.mark.replicas), "since_ms": each.mark.ctime_ms}
            for each in marked[:MARKS_MAX]
        ],
        "auto_recovery": {
            "exists": cluster.has_recovery,
            "enabled": cluster.is_recovery_enabled,
            "auditor": cluster.auditor,
            "delay_s": cluster.delay_s,
        },
        "balance": None if balance is None else attrs.asdict(balance),
    }


def _rates_of_bookies(
    entries: Mapping[int, tuple[int, Mapping[str, float]]], rates: Mapping[str, float | None]
) -> dict[str, float | None]:
    """The entries per second that ledgers write to each bookie; None if no rate of a ledger is known yet."""
    found: dict[str, float | None] = {}
    for ledger, (_, replicas) in entries.items():
        rate = rates[f"{ledger}"]
        for bookie, share in replicas.items():
            before = found.get(bookie)
            found[bookie] = before if rate is None else round((before or 0.0) + share * rate, 1)
    return found


async def logs(namespace: Namespace, rates_of: RatesOf) -> dict[str, Any]:
    """The logs with their sizes, writers and cursors."""
    names = await namespace.list_logs()
    found: dict[str, dict[str, Any]] = {}
    limit = trio.CapacityLimiter(AT_ONCE)

    async def look(name: str) -> None:
        async with limit:
            try:
                with trio.fail_after(READ_S):
                    described = await namespace.describe_log(name)
                    cursors = await namespace.cursors(name).list()
            except (DLogError, trio.TooSlowError) as exc:
                found[name] = {"name": name, "error": str(exc) or f"no reply within {READ_S:g} s"}
                return
            found[name] = {
                "name": name,
                "records": described.record_count,
                "segments": len(described.segments),
                "writer": described.writer,
                "forwarders": described.forwarders,
                "is_sealed": described.is_sealed,
                "cursors": len(cursors),
            }

    async with trio.open_nursery() as nursery:
        for name in names[:LOGS_MAX]:
            nursery.start_soon(look, name)
    rates = rates_of("streams", {name: each["records"] for name, each in found.items() if "records" in each})
    for name, each in found.items():
        each["records_per_s"] = rates.get(name)
    return {
        "streams": [found[name] for name in names[:LOGS_MAX]],
        "left_out": max(0, len(names) - LOGS_MAX),
        "at_ms": wall_ms(),
    }


async def log_detail(namespace: Namespace, name: str) -> dict[str, Any]:
    """One log: its segments with their times, its cursors with their lag."""
    described = await namespace.describe_log(name)
    cursors = namespace.cursors(name)
    segments = described.segments[-SEGMENTS_MAX:]
    ledgers: dict[int, dict[str, int | None]] = {}

    async def look(ledger_id: int) -> None:
        try:
            stored = await namespace.context.client.stored(ledger_id)
        except NoSuchLedgerError:
            ledgers[ledger_id] = {"began_ms": None, "bookies": None, "bookies_asked": None}
            return
        asked = AskedReplication.of(stored.metadata.custom)
        size = stored.metadata.ensemble_size
        ledgers[ledger_id] = {
            "began_ms": stored.created_ms,
            "bookies": size,
            "bookies_asked": size if asked is None else asked.ensemble_size,
        }

    async with trio.open_nursery() as nursery:
        for each in segments:
            nursery.start_soon(look, each.ledger_id)
    done = sum(each.record_count or 0 for each in described.segments)
    return {
        "name": name,
        "at_ms": wall_ms(),
        "records": described.record_count,
        "first": _text(described.first_dlsn),
        "last": _text(described.last_dlsn),
        "writer": described.writer,
        "forwarders": described.forwarders,
        "is_sealed": described.is_sealed,
        "segments": [
            {
                "segment_seqno": each.segment_seqno,
                "ledger_id": each.ledger_id,
                "is_completed": each.is_completed,
                "records": each.record_count if each.is_completed else max(0, described.record_count - done),
                **ledgers[each.ledger_id],
                "completed_ms": each.completed_ms,
                "truncation": each.truncation.name.lower(),
            }
            for each in segments
        ],
        "left_out": len(described.segments) - len(segments),
        "cursors": [
            {"name": each.name, "position": _text(each.position), "lag": await cursors.lag(each)}
            for each in (await cursors.list())[:SEGMENTS_MAX]
        ],
    }


async def records(namespace: Namespace, name: str, start: str) -> dict[str, Any]:
    """Up to ``RECORDS_MAX`` records from a position: ``earliest``, a DLSN, or a transaction id."""
    where = _position(start)
    found: list[Record] = []
    with trio.fail_after(READ_S):
        async with namespace.open_reader(name, start=where, follow=False) as reader:
            while len(found) <= RECORDS_MAX:
                batch = await reader.read_batch(RECORDS_MAX + 1 - len(found))
                if batch is None:
                    break
                found += batch
    more = found[RECORDS_MAX].dlsn if len(found) > RECORDS_MAX else None
    return {
        "name": name,
        "records": [_record(each) for each in found[:RECORDS_MAX]],
        "next": _text(more),
    }


async def explained(namespace: Namespace, kind: str, name: str) -> dict[str, Any]:
    """The reasons of ``dlog explain``."""
    if kind == "log":
        reasons = explain(await collect_log(namespace, name))
    elif kind in ("ledger", "bookie"):
        client = namespace.context.client
        cluster = await collect_cluster(client, is_directory=_is_directory(namespace))
        if kind == "bookie":
            reasons = explain(await collect_bookie(client, name, cluster))
        else:
            reasons = explain(await collect_ledger(client, _ledger_id(client, name), cluster))
    else:
        raise BadQuestionError("kind is log, ledger or bookie")
    return {
        "kind": kind,
        "name": name,
        "is_sound": not any(each.is_fault for each in reasons),
        "reasons": [attrs.asdict(each) for each in reasons],
    }


async def _open_entries(namespace: Namespace) -> dict[int, tuple[int, dict[str, float]]]:
    """The last readable entry of each ledger that is written, and the share of its entries on each bookie."""
    found: dict[int, tuple[int, dict[str, float]]] = {}
    limit = trio.CapacityLimiter(AT_ONCE)

    async def look(name: str) -> None:
        async with limit:
            try:
                last = await namespace.last_dlsn(name)
                segments = await namespace.segments(name)
                newest = segments[-1] if segments else None
                if last is None or newest is None or newest.is_completed:
                    return
                if last.segment_seqno != newest.segment_seqno:
                    return
                metadata = await namespace.context.client.metadata(newest.ledger_id)
            except (DLogError, NoSuchLedgerError):
                return
            share = metadata.write_quorum / metadata.ensemble_size
            found[newest.ledger_id] = (last.entry_id, dict.fromkeys(metadata.last_ensemble.bookies, share))

    with trio.move_on_after(READ_S):
        async with trio.open_nursery() as nursery:
            for name in (await namespace.list_logs())[:LOGS_MAX]:
                nursery.start_soon(look, name)
    return found


def _position(text: str) -> Any:
    if text == "earliest":
        return EARLIEST
    parts = [_number(part) for part in text.split(":", 3)]
    match parts:
        case [int() as segment_seqno, int() as entry_id, int() as slot_id]:
            return DLSN(segment_seqno, entry_id, slot_id)
        case [int() as txid]:
            return txid
    raise BadQuestionError("from: earliest, a position such as 7:42:0, or a transaction id")


def _ledger_id(client: LedgerClient, text: str) -> int:
    ledger_id = _number(text)
    if ledger_id is None:
        raise BadQuestionError("the name of a ledger is its number")
    try:
        client.context.catalog.path(ledger_id)
    except LedgerMetadataError as exc:
        raise BadQuestionError(str(exc)) from None
    return ledger_id


def _number(text: str) -> int | None:
    """A number of Java's long that is not negative; None if the text is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        return None
    value = int(text)
    return value if value < 2**63 else None


def _record(record: Record) -> dict[str, Any]:
    payload = record.payload[:PAYLOAD_BYTES_MAX]
    document: dict[str, Any] = {
        "dlsn": str(record.dlsn),
        "txid": record.txid,
        "size_bytes": len(record.payload),
        "is_cut": len(payload) < len(record.payload),
        "hex": payload.hex(" ", -4),
    }
    try:
        # A cut may go through the last character.
        text = payload.decode("utf-8", "strict" if not document["is_cut"] else "ignore")
    except UnicodeDecodeError:
        return document
    return document | {"text": text}


def _text(dlsn: DLSN | None) -> str | None:
    return None if dlsn is None else str(dlsn)


def _is_directory(namespace: Namespace) -> bool:
    return namespace.uri.lower().startswith("file:")
