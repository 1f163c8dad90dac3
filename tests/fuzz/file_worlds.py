"""The directories of the file sweep: a bookie with each index, and a namespace in a directory.

Inside: making one, using one, comparing what is read with what was written.
Not inside: what is broken in it (``file_sweep``).
Always: ``use`` reads all, adds something, reads it, and closes.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Protocol

import attrs
import trio

import dlog
from bookie.config.bookie_config import parse_config
from bookie.config.classes import BookieConfig
from bookie.errors import BookieServerError
from bookie.main import run_bookie
from dlog.errors import DLogError
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.wire import v2
from ledger.wire.messages import AddRequest, ReadReply, ReadRequest, Reply, Request
from tests.fuzz.frame_talk import Talk
from tests.fuzz.frame_world import MACHINE

ENTRIES = EntryCodec(DigestType.CRC32C, b"")
LEDGERS, RECORDS = (1, 2, 3), 3
LOGS = ("orders", "bills")
SETTINGS = {
    f"{side}.{name}": value
    for side in ("reader", "writer")
    for name, value in (("retry_timeout_s", 0.3), ("retry_pause_s", 0.02))
}
ENDING_S = 20.0  # for a bookie that ends


@attrs.define
class Outcome:
    """What became of what was written."""

    wrong: str | None = None  # something else was read
    lost: int = 0  # read as absent, or refused


class World(Protocol):
    """A directory with content."""

    async def create(self, home: Path) -> None: ...

    async def use(self, home: Path, broken: Callable[[], None], outcome: Outcome) -> None:
        """Open it, call ``broken``, read all, add something, close."""


@contextmanager
def quiet() -> Iterator[None]:
    """Without the lines of log that the damage causes."""
    loggers = [logging.getLogger(name) for name in ("bookie", "ledger", "namespace", "dlog")]
    handler = logging.NullHandler()
    propagate = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, before in zip(loggers, propagate, strict=True):
            logger.removeHandler(handler)
            logger.propagate = before


class BookieWorld:
    """The directories of a bookie of a cluster, with three ledgers."""

    def __init__(self, storage_class: str) -> None:
        self._storage_class = storage_class
        self._tree = MemoryTree()

    def _config(self, home: Path) -> BookieConfig:
        return parse_config(
            "metadataServiceUri=zk+null://nowhere:1/ledgers\nlisteningInterface=lo\nallowLoopback=true\n"
            "bookiePort=0\nallowEphemeralPorts=true\ndiskUsageThreshold=1\ndiskUsageWarnThreshold=1\n"
            "bookieId=sweep\njournalMaxSizeMB=1\njournalPreAllocSizeMB=1\njournalSyncData=false\n"
            "compactionReserveBytes=0\nflushReserveBytes=0\n"
            f"ledgerStorageClass=org.apache.bookkeeper.bookie.{self._storage_class}\n"
            f"journalDirectories={home}/journal\nledgerDirectories={home}/ledgers\n",
            "sweep.conf",
        )

    async def create(self, home: Path) -> None:
        with quiet():
            for _ in range(2):  # the second start finds files, and makes those that need a predecessor
                async with self._running(home, self._tree) as talk:
                    for ledger_id in LEDGERS:
                        for entry_id in range(RECORDS):
                            reply = await _add(talk, ledger_id, entry_id)
                            assert reply.code is Code.OK

    async def use(self, home: Path, broken: Callable[[], None], outcome: Outcome) -> None:
        tree = copy.deepcopy(self._tree)
        with quiet():
            async with self._running(home, tree) as talk:
                broken()
                outcome.lost = 0
                for ledger_id in LEDGERS:
                    for entry_id in range(RECORDS):
                        reply = await _call(talk, ReadRequest(ledger_id, entry_id))
                        if not isinstance(reply, ReadReply) or reply.body is None:
                            outcome.lost += 1
                        elif reply.body != _entry(ledger_id, entry_id):
                            outcome.wrong = f"entry {entry_id} of ledger {ledger_id} has other bytes"
                if (await _add(talk, 9, 0)).code is Code.OK:
                    reply = await _call(talk, ReadRequest(9, 0))
                    if not isinstance(reply, ReadReply) or reply.body != _entry(9, 0):
                        outcome.wrong = f"an acknowledged entry is read as {reply}"

    @asynccontextmanager
    async def _running(self, home: Path, tree: MemoryTree) -> AsyncIterator[Talk]:
        stop = trio.Event()

        async def run(*, task_status: trio.TaskStatus[int]) -> None:
            await run_bookie(
                self._config(home),
                open_store=lambda: open_memory_store(tree),
                stop=stop,
                machine=MACHINE,
                task_status=task_status,
            )

        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(run)
            talk = Talk(await trio.open_tcp_stream("127.0.0.1", port))
            try:
                yield talk
            except ConnectionError:  # the bookie is ending: its own error says why
                with trio.move_on_after(ENDING_S):
                    await trio.sleep_forever()
                raise
            finally:
                await trio.aclose_forcefully(talk.stream)
                stop.set()


async def _call(talk: Talk, request: Request) -> Reply:
    reply = await talk.ask(v2.encode_request(request))
    if reply is None:
        raise ConnectionError("the bookie closed the connection")
    return reply.reply


async def _add(talk: Talk, ledger_id: int, entry_id: int) -> Reply:
    return await _call(talk, AddRequest(ledger_id, entry_id, master_key(b""), _entry(ledger_id, entry_id)))


def _entry(ledger_id: int, entry_id: int) -> bytes:
    return ENTRIES.pack(ledger_id, entry_id, entry_id - 1, 5, b"%d of %d" % (entry_id, ledger_id))


class NamespaceWorld:
    """A namespace in a directory, with two logs."""

    async def create(self, home: Path) -> None:
        with quiet():
            for _ in range(2):
                async with dlog.open_namespace(home.as_uri(), settings=SETTINGS) as namespace:
                    for log in LOGS:
                        async with namespace.open_writer(log, create=True) as writer:
                            await writer.append_many(_records(log))

    async def use(self, home: Path, broken: Callable[[], None], outcome: Outcome) -> None:
        with quiet():
            async with dlog.open_namespace(home.as_uri(), settings=SETTINGS) as namespace:
                broken()
                outcome.lost = 0
                for log in LOGS:
                    await self._use_log(namespace, log, outcome)

    async def _use_log(self, namespace: dlog.Namespace, log: str, outcome: Outcome) -> None:
        wanted = _records(log) * 2
        try:
            found = await _read(namespace, log)
        except (BookieServerError, MetadataError, LedgerError, DLogError):
            outcome.lost += len(wanted)
            return
        rest = iter(wanted)
        old = [one for one in found if one != b"new"]
        if not all(one in rest for one in old):
            outcome.wrong = f"{log} has other records than were written: {found}"
        outcome.lost += len(wanted) - len(old)
        try:
            async with namespace.open_writer(log) as writer:
                await writer.append(b"new")
        except (BookieServerError, MetadataError, LedgerError, DLogError):
            return  # a log that cannot be written says so
        if b"new" not in await _read(namespace, log):
            outcome.wrong = f"an acknowledged record of {log} is not read"


async def _read(namespace: dlog.Namespace, log: str) -> list[bytes]:
    async with namespace.open_reader(log, follow=False) as reader:
        return [bytes(record.payload) async for record in reader]


def _records(log: str) -> list[bytes]:
    return [b"%s %d" % (log.encode(), number) for number in range(RECORDS)]


WORLDS: dict[str, Callable[[], World]] = {
    "bookie with chunk index": lambda: BookieWorld("ldb.DbLedgerStorage"),
    "bookie with page index": lambda: BookieWorld("SortedLedgerStorage"),
    "namespace in a directory": NamespaceWorld,
}
