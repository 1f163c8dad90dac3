"""One rule for ``dlog.blocking``, ``dlog.aio`` and ``ledger.blocking``: their calls are those of trio.

A face has the same names, with the same arguments in the same order, the same types and the same docstrings.
What differs stands in a table here, with its reason.
"""

# covers: dlog/aio/batches.py
# covers: dlog/aio/backup.py
# covers: dlog/aio/cursors.py
# covers: dlog/blocking/batches.py
# covers: dlog/blocking/backup.py
# covers: dlog/blocking/cursors.py

from __future__ import annotations

import inspect
import pydoc
import re
import typing
from types import ModuleType
from typing import Any

import pytest

import dlog
import dlog.aio
import dlog.backup
import dlog.blobs
import dlog.blocking
import dlog.bulk
import dlog.groups
import dlog.shards
import dlog.wal
import ledger
import ledger.blocking
from dlog import operations
from dlog.aio import namespace as aio_calls
from dlog.aio.batches import DetachedSegmentWriter as AioDetached
from dlog.aio.shards import ShardedPending as AioShardedPending
from dlog.backup.calls import BackupCalls
from dlog.blobs.calls import BlobCalls
from dlog.blocking import namespace as blocking_calls
from dlog.blocking.batches import DetachedSegmentWriter as BlockingDetached
from dlog.bulk.detached import DetachedSegmentWriter
from dlog.promotion.calls import PromotionCalls
from dlog.shards.writer import ShardedPending
from ledger.client import LedgerClient
from ledger.runtime.tasks.face import Shown

# The class of trio and its face.
HELD = (  # by a namespace
    *(getattr(operations, name) for name in operations.__all__),
    PromotionCalls,
    BackupCalls,
    BlobCalls,
)
PAIRS: list[tuple[type, type]] = [
    *((each, getattr(faces, each.__name__)) for faces in (aio_calls, blocking_calls) for each in HELD),
    *(
        (getattr(module, name), getattr(face, name))
        for face in (dlog.blocking, dlog.aio)
        for module, names in (
            (dlog, ("Namespace", "LogWriter", "LogReader", "LogCursors", "Scan", "SegmentWatch")),
            (dlog.backup, ("Backups",)),
            (dlog.blobs, ("BlobReader", "BlobWriter")),
            (dlog.shards, ("ShardedWriter", "ShardedReader")),
            (dlog.groups, ("GroupMember",)),
            (dlog.wal, ("WriteAheadLog", "WalStandby")),
        )
        for name in names
    ),
    (dlog.Pending, dlog.aio.Pending),
    (ShardedPending, AioShardedPending),
    (DetachedSegmentWriter, BlockingDetached),
    (DetachedSegmentWriter, AioDetached),
    (LedgerClient, ledger.blocking.LedgerClient),
    (ledger.WriteHandle, ledger.blocking.WriteHandle),
    (ledger.ReadHandle, ledger.blocking.ReadHandle),
]

FUNCTIONS = [
    *(
        (getattr(module, name), face, name)
        for face in (dlog.blocking, dlog.aio)
        for module, names in (
            (dlog, ("open_namespace",)),
            (
                dlog.shards,
                (
                    "create_sharded_log",
                    "delete_sharded_log",
                    "open_sharded_reader",
                    "open_sharded_writer",
                    "shard_names",
                ),
            ),
            (dlog.backup, ("open_backups",)),
            (dlog.groups, ("join_group",)),
            (dlog.wal, ("open_wal", "follow_wal")),
        )
        for name in names
    ),
    (ledger.open_client, ledger.blocking, "open_client"),
]

INSIDE = "for other modules of the package"
BLOCK = "a namespace ends with the block that it was opened in"
LATER = "a number for the statistics"
NOT_FACED = {
    **{f"{each.__name__}.context": INSIDE for each in HELD},
    "LogWriter.begin_append": "for the faces: their callers wait in their own way",
    "LogWriter.reopener": INSIDE,
    "LedgerClient.timers": INSIDE,
    "Pending.sent_to": INSIDE,
    "BlobWriter.finish": INSIDE,
    "BlobWriter.drop": INSIDE,
    "Scan.read": "for the faces",
    "Scan.convert": "for the faces",
    "ShardedReader.check_max": "for the faces",
    "ShardedReader.refill": "for the faces",
    "ShardedReader.take_batch": "for the faces",
    "ShardedReader.take_gap": "for the faces",
    "ShardedReader.take_record": "for the faces",
    "ShardedReader.take_rest": "for the faces",
    "ShardedReader.offer": INSIDE,
    "ShardedReader.offers": INSIDE,
    "GroupMember.run": INSIDE,
    "GroupMember.leave": INSIDE,
    "WriteAheadLog.replay": INSIDE,
    "WriteAheadLog.take_snapshots": INSIDE,
    "WalStandby.run": INSIDE,
    "DetachedSegmentWriter.finish": INSIDE,
    "Pending.on_settled": "a callback in trio; in asyncio a task awaits",
    "LedgerClient.root": INSIDE,
    "LedgerClient.context": INSIDE,
    "LedgerClient.recorder": INSIDE,
    "LedgerClient.membership": INSIDE,
    "LedgerClient.replica_copy": INSIDE,
    "LedgerClient.replica_check": INSIDE,
    "LedgerClient.stored": INSIDE,
    "LedgerClient.delete_unchanged": INSIDE,
    "LedgerClient.is_in_session": INSIDE,
    "LedgerClient.lose": INSIDE,
    "LedgerClient.create_adv": "its entries may come in any order, which needs tasks",
    "WriteHandle.capacity_waits": LATER,
    "WriteHandle.check_submit": INSIDE,
    "WriteHandle.on_confirmed": "a callback in trio; a future of ``submit`` is for threads",
    "WriteHandle.fail": INSIDE,
    "WriteHandle.run": INSIDE,
    "WriteHandle.send_now": INSIDE,
    "WriteHandle.send_soon": INSIDE,
    "ReadHandle.start": INSIDE,
    "ReadHandle.end_waits": INSIDE,
    "ReadHandle.take_recent": INSIDE,
}
CLOSES = "what ``async with`` closes in trio"
ADDED = {
    "blocking": {"close": CLOSES, "read": "looks at the state of a write-ahead log from another thread"},
    "aio": {"opened_by": "for the faces: what an object keeps open"},
}
# Written by hand, with another result or another argument. The reason stands in its own docstring.
OWN = {
    "blocking LogWriter.submit": "its result is a concurrent.futures.Future",
    "blocking ShardedWriter.submit": "its result is a concurrent.futures.Future",
    "blocking WriteHandle.submit": "its result is a concurrent.futures.Future, and trio's ``hold`` is inside",
}
# A result that is an object of trio there, and a face here.
FACES = {
    "LogWriter",
    "LogReader",
    "Scan",
    "SegmentWatch",
    "LogCursors",
    "WriteHandle",
    "ReadHandle",
    "DetachedSegmentWriter",
    "BlobReader",
    "BlobWriter",
}


def kind_of(face: type | ModuleType) -> str:
    return "aio" if "aio" in getattr(face, "__module__", face.__name__) else "blocking"


def public(owner: type) -> set[str]:
    return {name for name in dir(owner) if not name.startswith("_")}


def plain_type(text: object) -> str:
    """The text of an annotation, with what trio waits for replaced by its result."""
    name = text if isinstance(text, str) else inspect.formatannotation(text)
    name = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", name)
    name = re.sub(
        r"^(AbstractAsyncContextManager|AsyncIterator|Coroutine)\[(Any, Any, )?(.*)\]$", r"\3", name
    )
    return re.sub(r"^Iterator\[(.*)\]$", r"\1", name).removesuffix("[T]")  # a face has no other kind


def compare(theirs: Any, ours: Any, where: str) -> None:
    one, other = inspect.signature(theirs), inspect.signature(ours)
    if where not in OWN:
        assert [each.replace(annotation=0) for each in one.parameters.values()] == [
            each.replace(annotation=0) for each in other.parameters.values()
        ], where
        for name, parameter in one.parameters.items():
            assert plain_type(parameter.annotation) == plain_type(other.parameters[name].annotation), where
        assert plain_type(one.return_annotation) == plain_type(other.return_annotation), where
        assert inspect.getdoc(ours) == inspect.getdoc(theirs), where


@pytest.mark.parametrize(
    ("plain", "face"), PAIRS, ids=[f"{kind_of(face)} {face.__name__}" for _, face in PAIRS]
)
def test_a_face_has_the_names_arguments_types_and_docstrings_of_its_trio_class(
    plain: type, face: type
) -> None:
    kind = kind_of(face)
    left_out = {name for name in public(plain) if f"{plain.__name__}.{name}" in NOT_FACED}
    closing = {"aclose", "close"} if plain.__name__ != "WriteHandle" or kind == "aio" else set()
    missing = public(plain) - public(face) - left_out - closing
    assert missing == set()
    for name in sorted(public(plain) & public(face) - {"close"}):
        theirs, ours = getattr(plain, name), inspect.getattr_static(face, name)
        if isinstance(theirs, property):
            assert isinstance(ours, property), name
            assert inspect.getdoc(ours) == inspect.getdoc(theirs), name
            assert theirs.fget is not None
            if isinstance(ours, Shown):
                hint = typing.get_type_hints(face, include_extras=True, localns={"list": list})[name]
                assert plain_type(typing.get_args(hint)[0]) == plain_type(
                    inspect.signature(theirs.fget).return_annotation
                ), name
        elif inspect.isfunction(theirs):
            compare(theirs, ours, f"{kind} {plain.__name__}.{name}")


@pytest.mark.parametrize(
    ("plain", "face"), PAIRS, ids=[f"{kind_of(face)} {face.__name__}" for _, face in PAIRS]
)
def test_a_face_adds_only_what_the_table_names(plain: type, face: type) -> None:
    added = {
        name
        for name in public(face) - public(plain)
        if not isinstance(inspect.getattr_static(face, name), property)
    }
    assert added <= set(ADDED[kind_of(face)]), added


@pytest.mark.parametrize(
    ("plain", "face", "name"), FUNCTIONS, ids=[f"{face.__name__} {name}" for _, face, name in FUNCTIONS]
)
def test_a_function_of_a_face_has_the_arguments_and_the_docstring_of_its_namesake(
    plain: Any, face: ModuleType, name: str
) -> None:
    compare(plain, getattr(face, name), f"{kind_of(face)} {name}")


def test_the_tables_name_nothing_that_is_gone() -> None:
    names = {f"{plain.__name__}.{name}" for plain, _ in PAIRS for name in public(plain)}
    assert set(NOT_FACED) - names == set()
    known = {f"{kind_of(face)} {plain.__name__}.{name}" for plain, face in PAIRS for name in public(face)}
    known |= {f"{kind_of(face)} {name}" for _, face, name in FUNCTIONS}
    assert set(OWN) - known == set()


def test_help_shows_what_a_call_promises() -> None:
    for face in (dlog.blocking, dlog.aio):
        text = pydoc.plain(pydoc.render_doc(face.LogWriter))
        # Python 3.13 writes each parameter of a long signature into a line of its own.
        squeezed = re.sub(r"[\s|']", "", text)
        assert "append(self,payload:bytesbytearraymemoryview,*,txid:intNone=None" in squeezed
        assert "Write one record; return its position when it and every record before it are durable." in text
        assert "Bytes of submitted records that are neither durable nor failed yet." in text
