"""A whole bookie of a cluster in this process, with ledgers in each state, for the sweep of its port.

Inside: the bookie over a metadata store in memory, its ledgers, what must hold after a batch.
Not inside: the requests (``frame_cases``), a conversation (``frame_talk``), seeds (``frame_sweep``).
Always: after a batch an honest client writes and reads, new ledgers are confirmed, garbage collection deletes
what is dead, no entry has raised a LAC to its own id; no error was contained
(``ledger.runtime.tasks.failure_domain``) and none was logged: each would be a fault of ours.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import trio

from bookie import main as bookie_main
from bookie import upkeep
from bookie.auth.tls import TlsConfig
from bookie.cluster.cluster_root import create_cluster
from bookie.config.bookie_config import parse_config
from bookie.config.classes import BookieConfig
from bookie.gc.collector import GarbageCollector, GcConfig
from bookie.identity.address import Machine
from bookie.ledger_metadata import new_ledger_check
from bookie.ledger_metadata.live_ledgers import ServedLedgers
from bookie.requests.new_ledgers import NewLedgersConfig
from bookie.server import connection
from bookie.server.config import ServerConfig
from ledger.auth.tls import client_context
from ledger.catalog.catalog import LedgerCatalog, open_catalog
from ledger.catalog.paths import Layout
from ledger.client import open_ledger_client
from ledger.codes import Code
from ledger.digest import DigestType
from ledger.metadata import Ensemble, LedgerMetadata, LedgerState
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.runtime.tasks.failure_domain import contained_failures
from ledger.transport.dial import dial_tcp
from ledger.wire import v2, v3
from ledger.wire.messages import AddRequest, ReadReply, ReadRequest, Request, WriteLacRequest
from tests.fakes.certificates import make_authority
from tests.fuzz.frame_cases import ENTRIES, KEY, LAST_ENTRY_ID, PASSWORD, WITHOUT_ENTRIES, Case, State
from tests.fuzz.frame_talk import (
    HANG_S,
    HONEST_LEDGER,
    UNSERVED_LEDGER,
    Mode,
    Phase,
    Steps,
    Talk,
    open_talk,
)

PAYLOAD = b"of the honest client"
CHECK_INTERVAL_S = 0.02
MACHINE = Machine(lambda name: "127.0.0.1", lambda: "localhost", lambda host: "127.0.0.1")
OTHER_BYTES = "with other bytes than the ones stored here"
_MANY = 10**7
HONEST_PHASES = {
    **dict.fromkeys(Mode, Phase.NEW),
    Mode.AUTH: Phase.AFTER_AUTH,
    Mode.TLS: Phase.TLS_AFTER_AUTH,
}
_SETUP_FRAMES = 500  # sent at once
_DELETED = (State.DELETED, State.DELETED_FENCED)
_FENCED = (State.FENCED, State.FENCED_EMPTY, State.CLOSED, State.DELETED_FENCED)


class ErrorLog(logging.Handler):
    """What the bookie and the client log as an error. The sweep causes none that is expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if OTHER_BYTES in record.getMessage():
            return  # two requests of the sweep add the same entry of a ledger that both name by a bad value
        text = record.getMessage()[:300]
        if record.exc_info and (error := record.exc_info[1]) is not None:
            text += f": {place_of(error)}"
        self.found.append(text)


def place_of(error: BaseException) -> str:
    """The error of the product in a group, else the first one, with the line that raised it."""
    places = [line_of(one) for one in errors_in(error)]
    return next((place for place in places if "/tests/" not in place), places[0])


def errors_in(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from errors_in(one)
    else:
        yield error


def line_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f"{error!r:.300}{where}"


@contextmanager
def recorded(name: str, made: list[Any]) -> Iterator[None]:
    """Keep what ``bookie.upkeep`` makes of this class."""
    original: Callable[..., Any] = getattr(upkeep, name)

    def make(*args: Any, **more: Any) -> Any:
        one = original(*args, **more)
        made.append(one)
        return one

    with mock.patch.object(upkeep, name, make):
        yield


@attrs.define(eq=False)
class World:
    """A running bookie. Made by ``open_world``."""

    mode: Mode
    address: tuple[str, int]
    name: str
    store: MemoryStore
    layout: Layout
    catalog: LedgerCatalog
    served: ServedLedgers
    garbage: GarbageCollector
    context: ssl.SSLContext
    errors: ErrorLog
    failures_before: int
    setup: Talk

    async def call(self, request: Request, *, version: int = 3) -> Any:
        """The answer to an honest client's request."""
        codec = v3 if version == 3 else v2
        reply = await self.setup.ask(codec.encode_request(request, transaction_id=5))
        assert reply is not None, f"the bookie closed the connection of an honest client, at {request}"
        return reply.reply

    async def prepare(self, cases: Sequence[Case], *, flush: bool) -> None:
        """Bring the ledgers of these cases into their states."""
        frames: list[bytes] = []
        for case in cases:
            state, ledger_id = case.shape.state, case.ledger_id
            if state is not State.ABSENT:
                await self._create_metadata(ledger_id, state)
            frames += setup_frames(ledger_id, state)
        for start in range(0, len(frames), _SETUP_FRAMES):
            part = frames[start : start + _SETUP_FRAMES]
            del self.setup.replies[:]
            await self.setup.send(b"".join(part))
            while len(self.setup.replies) < len(part):
                assert not self.setup.is_closed, "the bookie closed the connection of an honest client"
                await self.setup.receive()
            refused = [
                one.reply for one in self.setup.replies if one.reply.code not in (Code.OK, Code.NO_ENTRY)
            ]
            assert not refused, refused[0]
        if flush:
            await self.served.service.storage.flush()
        deleted = [case.ledger_id for case in cases if case.shape.state in _DELETED]
        for ledger_id in deleted:
            await self.catalog.delete(ledger_id)
        await self.served.delete_ledgers(deleted)

    async def _create_metadata(self, ledger_id: int, state: State) -> None:
        closed = state is State.CLOSED
        metadata = LedgerMetadata(
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            ensembles=(Ensemble(first_entry_id=0, bookies=(self.name,)),),
            state=LedgerState.CLOSED if closed else LedgerState.OPEN,
            last_entry_id=LAST_ENTRY_ID if closed else -1,
            length_bytes=5 * (LAST_ENTRY_ID + 1) if closed else 0,
            digest_type=DigestType.CRC32C,
            password=PASSWORD,
        )
        await self.catalog.create(metadata, ledger_id)

    def fault(self) -> str | None:
        """An error that was contained or logged; None if there was none."""
        if self.errors.found:
            return f"the bookie logged an error: {self.errors.found[0]}"
        if contained_failures.total() != self.failures_before:
            return f"an error was contained: {dict(contained_failures)}"
        return None

    async def check(self) -> str | None:
        """Why the bookie does not serve an honest client as before; None if it does."""
        reply = await self.call(ReadRequest(HONEST_LEDGER, 0), version=2)
        if not isinstance(reply, ReadReply) or reply.body is None:
            return f"an honest read got {reply}"
        if ENTRIES.unpack(reply.body, HONEST_LEDGER, 0).payload != PAYLOAD:
            return "an honest client reads other bytes than it wrote"
        if self.served.service.storage.ledger(UNSERVED_LEDGER) is not None:
            return "an add in clear text behind START_TLS was served"
        return None

    async def check_batch(self, cases: Sequence[Case], honest_id: int) -> str | None:
        """What must hold after all conversations of a batch."""
        for case in cases:
            if case.lac is None or case.lac < case.named_entry_id or case.named_ledger_id != case.ledger_id:
                continue
            reply = await self.call(ReadRequest(case.ledger_id, -1))
            if isinstance(reply, ReadReply) and reply.body is not None and reply.max_lac is not None:
                last = int.from_bytes(reply.body[8:16], "big", signed=True)
                if reply.max_lac >= last:
                    return f"an entry raised its ledger's LAC to {reply.max_lac}; the last is {last}: {case}"
        with trio.move_on_after(HANG_S) as hang:
            if (reason := await self._check_new_ledger(honest_id)) is not None:
                return reason
        if hang.cancelled_caught:
            return f"an honest client's new ledger is not confirmed after {HANG_S:g} s"
        return await self.check()

    async def _check_new_ledger(self, ledger_id: int) -> str | None:
        """Write and read a new ledger, see it confirmed, delete it, see it collected."""
        if self.mode in (Mode.OPEN, Mode.OPEN_TLS):
            async with open_ledger_client(self.store, dial_tcp, layout=self.layout) as client:
                writer = await client.create(
                    ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD, ledger_id=ledger_id
                )
                await writer.append_many([b"one", b"two", PAYLOAD])
                await writer.close()
                async with await client.open(ledger_id, password=PASSWORD) as reader:
                    if await reader.read_payloads(0, 2) != [b"one", b"two", PAYLOAD]:
                        return "an honest client reads other bytes than it wrote"
        else:
            await self._create_metadata(ledger_id, State.OPEN)
            reply = await self.call(AddRequest(ledger_id, 0, KEY, entry(ledger_id, 0, -1)))
            if reply.code is not Code.OK:
                return f"an honest add got {reply}"
        service = self.served.service
        new = service.new_ledgers
        while new is not None and new.created_s(ledger_id) is not None:  # noqa: ASYNC110 - there is no event
            await trio.sleep(CHECK_INTERVAL_S)
        await self.catalog.delete(ledger_id)
        await self.garbage.run_round()
        return "a deleted ledger was not collected" if service.storage.ledger(ledger_id) else None


def entry(ledger_id: int, entry_id: int, lac: int) -> bytes:
    return ENTRIES.pack(ledger_id, entry_id, lac, 5 * (entry_id + 1), b"hello")


def setup_frames(ledger_id: int, state: State) -> list[bytes]:
    """The requests that bring a ledger into its state on the bookie, but for the deletion."""
    frames = []
    if state in (State.EMPTY, State.EXPLICIT_LAC):
        lac = -1 if state is State.EMPTY else LAST_ENTRY_ID - 1
        packet = ENTRIES.pack_lac(ledger_id, lac)
        frames.append(v3.encode_request(WriteLacRequest(ledger_id, lac, KEY, packet), transaction_id=3))
    if state not in WITHOUT_ENTRIES or state in _DELETED:
        for entry_id in range(LAST_ENTRY_ID + 1):
            lac = -1 if state is State.OPEN else entry_id - 1
            frames.append(
                v2.encode_request(AddRequest(ledger_id, entry_id, KEY, entry(ledger_id, entry_id, lac)))
            )
    if state in _FENCED:
        frames.append(v2.encode_request(ReadRequest(ledger_id, -1, fence=True, master_key=KEY)))
    return frames


def sweep_config(mode: Mode, directory: Path, more: str = "") -> BookieConfig:
    """The configuration of the bookie; its certificate and its authority's are in the directory then."""
    authority = make_authority()
    authority.sign("localhost").write_pem(directory / "bookie.pem")
    authority.write_pem(directory / "authority.pem")
    text = (
        "metadataServiceUri=zk+null://nowhere:1/ledgers\nlisteningInterface=lo\nallowLoopback=true\n"
        "bookiePort=0\nallowEphemeralPorts=true\ndiskUsageThreshold=1\ndiskUsageWarnThreshold=1\n"
        "journalMaxSizeMB=4\njournalPreAllocSizeMB=1\njournalSyncData=false\n"
        "compactionReserveBytes=0\nflushReserveBytes=0\n"
        f"journalDirectories={directory}/journal\nledgerDirectories={directory}/ledgers\n{more}"
    )
    config = attrs.evolve(
        parse_config(text, "sweep.conf"),
        new_ledgers=NewLedgersConfig(unconfirmed_max=_MANY, per_second_max=_MANY),
        gc=GcConfig(metadata_requests_per_s=_MANY),
        warnings=(),
    )
    if mode is not Mode.OPEN:
        config = attrs.evolve(
            config,
            tls=TlsConfig(key=directory / "bookie.pem", certificate=directory / "bookie.pem"),
            server=ServerConfig(auth=Steps() if mode.has_auth else None, tls_required=mode is Mode.TLS),
        )
    return config


@asynccontextmanager
async def open_world(mode: Mode, layout: Layout, directory: Path) -> AsyncIterator[World]:
    """The bookie, ready, and an honest client's ledger on it. Errors of the bookie are raised."""
    errors = ErrorLog()
    made_served: list[ServedLedgers] = []
    made_garbage: list[GarbageCollector] = []
    tree = MemoryTree()
    config = sweep_config(mode, directory)
    loggers = [logging.getLogger(name) for name in ("bookie", "ledger", "namespace")]
    propagate = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(errors)
        logger.propagate = False  # a line for each hostile connection
    try:
        context = client_context(authorities=directory / "authority.pem")
        async with open_memory_store(tree) as store, trio.open_nursery() as nursery:
            await create_cluster(store, "/ledgers", layout, "6f9f1f5e-0b6c-4d8e-9a53-5b2f1f0d2a11")
            with (
                mock.patch.object(new_ledger_check, "INTERVAL_S", CHECK_INTERVAL_S),
                mock.patch.object(connection, "EARLY_TOKEN_S", CHECK_INTERVAL_S),
                recorded("ServedLedgers", made_served),
                recorded("GarbageCollector", made_garbage),
            ):
                stop = trio.Event()

                async def run(*, task_status: trio.TaskStatus[int]) -> None:
                    await bookie_main.run_bookie(
                        config,
                        open_store=lambda: open_memory_store(tree),
                        stop=stop,
                        machine=MACHINE,
                        task_status=task_status,
                    )

                port: int = await nursery.start(run)
                address = ("127.0.0.1", port)
                phase = HONEST_PHASES[mode]
                catalog = await open_catalog(store, "/ledgers", layout)
                world = World(
                    mode,
                    address,
                    f"127.0.0.1:{port}",
                    store,
                    layout,
                    catalog,
                    made_served[0],
                    made_garbage[0],
                    context,
                    errors,
                    contained_failures.total(),
                    await open_talk(address, phase, context),
                )
                await world._create_metadata(HONEST_LEDGER, State.OPEN)
                body = ENTRIES.pack(HONEST_LEDGER, 0, -1, len(PAYLOAD), PAYLOAD)
                reply = await world.call(AddRequest(HONEST_LEDGER, 0, KEY, body))
                assert reply.code is Code.OK, reply
                try:
                    yield world
                finally:
                    await trio.aclose_forcefully(world.setup.stream)
                    stop.set()
    finally:
        for logger, was in zip(loggers, propagate, strict=True):
            logger.removeHandler(errors)
            logger.propagate = was
