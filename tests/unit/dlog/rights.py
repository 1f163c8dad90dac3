"""Each public call on logs, with the right that it needs and a way to make it. For ``test_rights``.

A call is made through any face (trio, asyncio, blocking): ``make`` gets the namespace, the functions of the
face, and a ``Place``; ``then`` gets what ``make`` has opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

import dlog
from dlog.bulk import BatchPlan, DetachedSegment
from namespace.access_control.entries import Denial
from namespace.policy import Policy, Right

START = dlog.DLSN(1, 0, 0)


@attrs.frozen(kw_only=True)
class Place:
    """Logs of a call's own, which exist before it."""

    log: str  # with a record and the cursors "c" and "mine-1"
    sharded: str  # two shards, each with a record; empty if the call does not need it
    wal: str  # with an operation; likewise
    plan: BatchPlan | None  # likewise
    segment: DetachedSegment | None
    uri: str
    destination: str  # a directory that does not exist
    policy: Policy | None

    @property
    def part(self) -> dict[str, Any]:
        """The arguments of the calls of a batch."""
        return {"plan": self.plan, "segments": [self.segment]}


@attrs.frozen
class Call:
    """A public call."""

    name: str
    right: Right | None  # None: no right
    make: Callable[[Any, Any, Place], Any]
    then: Callable[[Any], Any] | None = None  # with what ``make`` opens
    opens_with: Right | None = None  # the right to open it, if that is another one
    on_all: bool = False  # the right on the logs "*" is needed
    needs: tuple[str, ...] = ()  # of the fields of ``Place``
    cursor: str | None = None  # that is moved
    may_fail: bool = False  # with another error than AccessDeniedError, in the place of the test


def _named(log: str) -> str:
    return f"{log}-new"


READ, COMMIT, WRITE, ADMIN = Right
BLOB = ("blob",)
NAMESPACE = [
    Call("list_logs", None, lambda ns, face, at: ns.list_logs()),
    Call("policy.get", None, lambda ns, face, at: ns.policy.get()),
    Call("access.entries", None, lambda ns, face, at: ns.access.entries(), may_fail=True),
    Call("segments", READ, lambda ns, face, at: ns.segments(at.log)),
    Call("last_dlsn", READ, lambda ns, face, at: ns.last_dlsn(at.log)),
    Call("log_identity", READ, lambda ns, face, at: ns.log_identity(at.log)),
    Call("describe_log", READ, lambda ns, face, at: ns.describe_log(at.log)),
    Call("count_records", READ, lambda ns, face, at: ns.count_records(at.log)),
    Call("entry_totals", READ, lambda ns, face, at: ns.entry_totals(at.log, [(1, 0)])),
    Call("repair.verify", READ, lambda ns, face, at: ns.repair.verify(at.log)),
    Call("repair.verify_entries", READ, lambda ns, face, at: ns.repair.verify_entries(at.log, 1)),
    Call("repair.check", READ, lambda ns, face, at: ns.repair.check(at.log)),
    Call("log_exists", READ, lambda ns, face, at: ns.log_exists(at.log)),
    Call("log_location", READ, lambda ns, face, at: ns.log_location(at.log)),
    Call("properties.get", READ, lambda ns, face, at: ns.properties.get(at.log)),
    Call("retention.get", READ, lambda ns, face, at: ns.retention.get(at.log)),
    Call("promotion.status", READ, lambda ns, face, at: ns.promotion.status(at.log)),
    Call("batches.last", READ, lambda ns, face, at: ns.batches.last("series", at.log)),
    Call("open_reader", READ, lambda ns, face, at: ns.open_reader(at.log, follow=False)),
    Call("scan", READ, lambda ns, face, at: ns.scan(at.log)),
    Call("watch_segments", READ, lambda ns, face, at: ns.watch_segments(at.log)),
    Call("position_of", READ, lambda ns, face, at: ns.position_of(at.log, txid=1)),
    Call("purge_log(dry_run=True)", READ, lambda ns, face, at: ns.purge_log(at.log, dry_run=True)),
    Call("create_log", WRITE, lambda ns, face, at: ns.create_log(_named(at.log))),
    Call("open_writer", WRITE, lambda ns, face, at: ns.open_writer(at.log)),
    Call("repair.recover", WRITE, lambda ns, face, at: ns.repair.recover(at.log)),
    Call(
        "batches.begin",
        WRITE,
        lambda ns, face, at: ns.batches.begin([at.log], record_log=at.log, series="series", number=7),
    ),
    Call(
        "batches.open_segment",
        WRITE,
        lambda ns, face, at: ns.batches.open_segment(at.plan, at.log),
        needs=("plan",),
    ),
    Call("batches.attach", WRITE, lambda ns, face, at: ns.batches.attach(**at.part), needs=("plan",)),
    Call(
        "batches.attach(properties=...)",
        ADMIN,
        lambda ns, face, at: ns.batches.attach(**at.part, properties={"owner": "me"}),
        needs=("plan",),
    ),
    Call("batches.abandon", WRITE, lambda ns, face, at: ns.batches.abandon(**at.part), needs=("plan",)),
    Call("properties.change", ADMIN, lambda ns, face, at: ns.properties.change(at.log, {"owner": "me"})),
    Call("retention.set", ADMIN, lambda ns, face, at: ns.retention.set(at.log, dlog.Retention(age_s=9))),
    Call("retention.apply", ADMIN, lambda ns, face, at: ns.retention.apply(at.log)),
    Call("truncate_log", ADMIN, lambda ns, face, at: ns.truncate_log(at.log, START)),
    Call("repair.heal", ADMIN, lambda ns, face, at: ns.repair.heal(at.log)),
    Call("purge_log", ADMIN, lambda ns, face, at: ns.purge_log(at.log)),
    Call("delete_log", ADMIN, lambda ns, face, at: ns.delete_log(at.log)),
    Call("rename_log", ADMIN, lambda ns, face, at: ns.rename_log(at.log, _named(at.log))),
    Call("seal_log", ADMIN, lambda ns, face, at: ns.seal_log(at.log)),
    Call("repair.apply", ADMIN, lambda ns, face, at: ns.repair.apply(at.log)),
    Call(
        "promotion.promote", ADMIN, lambda ns, face, at: ns.promotion.promote(at.log, at.uri), may_fail=True
    ),
    Call(
        "promotion.promote_all",
        ADMIN,
        lambda ns, face, at: ns.promotion.promote_all(at.uri, [at.log]),
        may_fail=True,
    ),
    Call("promotion.undo", ADMIN, lambda ns, face, at: ns.promotion.undo(at.log), may_fail=True),
    Call("promotion.purge", ADMIN, lambda ns, face, at: ns.promotion.purge(at.log), may_fail=True),
    Call(
        "backup.make",
        ADMIN,
        lambda ns, face, at: ns.backup.make(at.destination),
        on_all=True,
        may_fail=True,  # it waits for the disk, and virtual time does not
    ),
    Call(
        "backup.replicate",
        ADMIN,
        lambda ns, face, at: ns.backup.replicate(f"{at.destination}/no/such", retry_timeout_s=0),
        on_all=True,
        may_fail=True,
    ),
    Call("blobs.list", None, lambda ns, face, at: ns.blobs.list()),
    Call("blobs.get", READ, lambda ns, face, at: ns.blobs.get(at.log), needs=BLOB),
    Call("blobs.describe", READ, lambda ns, face, at: ns.blobs.describe(at.log), needs=BLOB),
    Call("blobs.open_reader", READ, lambda ns, face, at: ns.blobs.open_reader(at.log), needs=BLOB),
    Call("blobs.put", WRITE, lambda ns, face, at: ns.blobs.put(_named(at.log), b"x")),
    Call("blobs.open_writer", WRITE, lambda ns, face, at: ns.blobs.open_writer(_named(at.log))),
    Call(
        "blobs.put(replace=True)",
        ADMIN,
        lambda ns, face, at: ns.blobs.put(at.log, b"x", replace=True),
        needs=BLOB,
    ),
    Call("blobs.delete", ADMIN, lambda ns, face, at: ns.blobs.delete(at.log), needs=BLOB),
    Call("blobs.sweep", ADMIN, lambda ns, face, at: ns.blobs.sweep(), on_all=True),
    Call("repair.find_orphans", ADMIN, lambda ns, face, at: ns.repair.find_orphans(), on_all=True),
    Call("repair.delete_orphans", ADMIN, lambda ns, face, at: ns.repair.delete_orphans([10**9]), on_all=True),
    Call("policy.set", ADMIN, lambda ns, face, at: ns.policy.set(at.policy), on_all=True),
    Call(
        "access.set",
        ADMIN,
        lambda ns, face, at: ns.access.set(None, frozenset({Denial.TRUNCATE})),
        on_all=True,
        may_fail=True,
    ),
    Call(
        "access.enable",
        ADMIN,
        lambda ns, face, at: ns.access.enable(),
        on_all=True,
        may_fail=True,
    ),
]


def _reads(ns: Any, face: Any, at: Place) -> Any:
    return ns.open_reader(at.log, follow=False, gaps=True)


def _scans(ns: Any, face: Any, at: Place) -> Any:
    return ns.scan(at.log)


def _reads_with_cursor(ns: Any, face: Any, at: Place) -> Any:
    return ns.open_reader(at.log, follow=False, cursor="c")


def _writes(ns: Any, face: Any, at: Place) -> Any:
    return ns.open_writer(at.log)


def _reads_shards(ns: Any, face: Any, at: Place) -> Any:
    return face.open_sharded_reader(ns, at.sharded, follow=False, cursor="c", gaps=True)


def _writes_shards(ns: Any, face: Any, at: Place) -> Any:
    return face.open_sharded_writer(ns, at.sharded)


def _owns_wal(ns: Any, face: Any, at: Place) -> Any:
    return face.open_wal(
        ns,
        name=at.wal,
        apply=lambda operation: None,
        snapshot=lambda: b"",
        restore=lambda state: None,
    )


def _follows_wal(ns: Any, face: Any, at: Place) -> Any:
    return face.follow_wal(
        ns,
        name=at.wal,
        apply=lambda operation: None,
        snapshot=lambda: b"",
        restore=lambda state: None,
    )


def _later(then: Mapping[str, Callable[[Any], Any]], right: Right, make: Any, **more: Any) -> list[Call]:
    return [Call(name, right, make, act, **more) for name, act in then.items()]


READER = _later(
    {
        "read_batch": lambda reader: reader.read_batch(1),
        "read_batch_or_gap": lambda reader: reader.read_batch_or_gap(1),
        "read_records": lambda reader: reader.read_records(1),
        "batches": lambda reader: reader.batches(1),
    },
    READ,
    _reads,
) + _later(
    {
        "commit": lambda reader: reader.commit(),
        "commit_to": lambda reader: reader.commit_to(START.next_slot()),
    },
    COMMIT,
    _reads_with_cursor,
    opens_with=READ,
    cursor="c",
)
WRITER = _later(
    {
        "append": lambda writer: writer.append(b"x"),
        "append_many": lambda writer: writer.append_many([b"x"]),
        "append_after": lambda writer: writer.append_after(b"x", last=START),
        "append_many_after": lambda writer: writer.append_many_after([b"x"], last=START),
        "append_once": lambda writer: writer.append_once(b"x", txid=2**50),
        "outcome": lambda writer: writer.outcome(2**50),
        "submit": lambda writer: writer.submit(b"x"),
        "wait_capacity": lambda writer: writer.wait_capacity(),
        "flush": lambda writer: writer.flush(),
        "reopen": lambda writer: writer.reopen(),
    },
    WRITE,
    _writes,
) + _later(
    {"truncate": lambda writer: writer.truncate(START), "seal": lambda writer: writer.seal()},
    ADMIN,
    _writes,
    opens_with=WRITE,
)
SCAN = _later({"to_table": lambda scan: scan.to_table()}, READ, _scans)
BLOB_READER = _later(
    {"read": lambda reader: reader.read(), "read_part": lambda reader: reader.read_part()},
    READ,
    lambda ns, face, at: ns.blobs.open_reader(at.log),
    needs=BLOB,
)
BLOB_WRITER = _later(
    {"write": lambda writer: writer.write(b"x")},
    WRITE,
    lambda ns, face, at: ns.blobs.open_writer(_named(at.log)),
)
CURSORS = [
    Call("list", READ, lambda ns, face, at: ns.cursors(at.log).list()),
    Call("get", READ, lambda ns, face, at: ns.cursors(at.log).get("c")),
    Call("lag", READ, lambda ns, face, at: ns.cursors(at.log).lag(dlog.Cursor(at.log, "c", START, 0))),
    Call("set", COMMIT, lambda ns, face, at: ns.cursors(at.log).set("c", START.next_slot()), cursor="c"),
    Call("delete", COMMIT, lambda ns, face, at: ns.cursors(at.log).delete("c"), cursor="c"),
]
DETACHED = [
    Call(
        "append_many",
        WRITE,
        lambda ns, face, at: ns.batches.open_segment(at.plan, at.log),
        lambda writer: writer.append_many([b"x"]),
        needs=("plan",),
    )
]
SHARDED: dict[str, Any] = {"needs": ("sharded",)}
SHARD_READER = _later(
    {
        "read_batch": lambda reader: reader.read_batch(1),
        "read_batch_or_gap": lambda reader: reader.read_batch_or_gap(1),
        "batches": lambda reader: reader.batches(1),
    },
    READ,
    _reads_shards,
    **SHARDED,
) + _later(
    {
        "commit": lambda reader: reader.commit(),
        "commit_to": lambda reader: reader.commit_to({0: START.next_slot()}),
        "commit_shard": lambda reader: reader.commit_shard(0, START),
    },
    COMMIT,
    _reads_shards,
    opens_with=READ,
    cursor="c",
    **SHARDED,
)
SHARD_WRITER = _later(
    {
        "append": lambda writer: writer.append(b"k", b"x"),
        "submit": lambda writer: writer.submit(b"k", b"x"),
        "append_many": lambda writer: writer.append_many([(b"k", b"x")]),
        "wait_capacity": lambda writer: writer.wait_capacity(),
        "flush": lambda writer: writer.flush(),
        "reopen": lambda writer: writer.reopen(),
    },
    WRITE,
    _writes_shards,
    **SHARDED,
)
GROUP = [
    Call(
        "commit",
        COMMIT,
        lambda ns, face, at: face.join_group(ns, "c", [at.log]),
        cursor="c",
    )
]
WAL = _later({"append": lambda wal: wal.append(b"x")}, WRITE, _owns_wal, needs=("wal",)) + _later(
    {"snapshot": lambda wal: wal.snapshot()}, ADMIN, _owns_wal, opens_with=WRITE, needs=("wal",)
)
STANDBY = _later(
    {"lag": lambda standby: standby.lag(), "wait_index": lambda standby: standby.wait_index(1)},
    READ,
    _follows_wal,
    needs=("wal",),
)
FUNCTIONS = [
    Call(
        "dlog.shards.create_sharded_log",
        ADMIN,
        lambda ns, face, at: face.create_sharded_log(ns, _named(at.log), 2),
    ),
    Call(
        "dlog.shards.delete_sharded_log",
        ADMIN,
        lambda ns, face, at: face.delete_sharded_log(ns, at.sharded),
        **SHARDED,
    ),
    Call("dlog.shards.shard_names", READ, lambda ns, face, at: face.shard_names(ns, at.sharded), **SHARDED),
    Call("dlog.shards.open_sharded_reader", READ, _reads_shards, **SHARDED),
    Call("dlog.shards.open_sharded_writer", WRITE, _writes_shards, **SHARDED),
    Call(
        "dlog.groups.join_group", COMMIT, lambda ns, face, at: face.join_group(ns, "c", [at.log]), cursor="c"
    ),
    Call("dlog.wal.open_wal", WRITE, _owns_wal, needs=("wal",)),
    Call("dlog.wal.follow_wal", READ, _follows_wal, needs=("wal",)),
]
CALLS = {
    f"{owner}.{call.name}" if owner else call.name: call
    for owner, calls in {
        "Namespace": NAMESPACE,
        "LogReader": READER,
        "LogWriter": WRITER,
        "Scan": SCAN,
        "BlobReader": BLOB_READER,
        "BlobWriter": BLOB_WRITER,
        "LogCursors": CURSORS,
        "DetachedSegmentWriter": DETACHED,
        "ShardedReader": SHARD_READER,
        "ShardedWriter": SHARD_WRITER,
        "GroupMember": GROUP,
        "WriteAheadLog": WAL,
        "WalStandby": STANDBY,
        "": FUNCTIONS,
    }.items()
    for call in calls
}
