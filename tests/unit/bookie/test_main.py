"""A complete bookie on real directories and sockets, with a metadata store in memory."""

# covers: bookie/__main__.py
# covers: bookie/bookie.py
# covers: bookie/healing/limbo.py
# covers: bookie/membership.py

from __future__ import annotations

import logging
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trio.lowlevel

from bookie.__main__ import has_secrets, run_program, signals_of
from bookie.bookie import open_bookie
from bookie.config.bookie_config import parse_config
from bookie.config.classes import BookieConfig
from bookie.disk.disk import DiskUsage
from bookie.disk.real_disk import RealDisk
from bookie.endings import BookieExit, exit_code_of
from bookie.errors import (
    BookieConfigError,
    ClusterRestoredError,
    CookieError,
    DirectoryError,
    DirectoryInUseError,
    ListenError,
    RegistrationError,
    StorageFailedError,
)
from bookie.identity.address import Machine
from bookie.ledger_metadata import new_ledger_check
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.live_ledgers import ClusterChangedError, LiveLedgers
from bookie.main import run_bookie
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import Layout
from ledger.catalog.service_info import decode_service_info
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.errors import StoreUnreachableError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Stat
from ledger.wire import v2
from ledger.wire.messages import AddReply, AddRequest
from tests.fakes.small_disk import SmallDisk

NAME_OF = "127.0.0.1:{}".format
ENTRY = EntryCodec(DigestType.CRC32C, b"").pack(1, 0, -1, 2, b"hi")
MACHINE = Machine(lambda name: "127.0.0.1", lambda: "localhost", lambda host: "127.0.0.1")


def config_for(
    directory: Path, more: str = "", *, full: str = "diskUsageThreshold=1\ndiskUsageWarnThreshold=1\n"
) -> BookieConfig:
    return parse_config(
        "metadataServiceUri=zk+null://nowhere:1/ledgers\nlisteningInterface=lo\nallowLoopback=true\n"
        f"bookiePort=0\nallowEphemeralPorts=true\n{full}"
        "journalMaxSizeMB=1\njournalPreAllocSizeMB=1\n"
        f"journalDirectories={directory}/journal\nledgerDirectories={directory}/ledgers\n{more}",
        "test.conf",
    )


@attrs.define(eq=False)
class Running:
    port: int
    stop: trio.Event
    ended: trio.Event


@asynccontextmanager
async def running(config: BookieConfig, tree: MemoryTree, **more: object) -> AsyncIterator[Running]:
    """The running bookie, ready; leaving the block stops it cleanly."""
    stop, ended = trio.Event(), trio.Event()

    async def run(*, task_status: trio.TaskStatus[int]) -> None:
        await run_bookie(
            config,
            open_store=lambda: open_memory_store(tree),
            stop=stop,
            machine=MACHINE,
            task_status=task_status,
            **more,  # type: ignore[arg-type]
        )
        ended.set()

    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(run)
        yield Running(port, stop, ended)
        stop.set()


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


@pytest.fixture
async def store(tree: MemoryTree) -> AsyncIterator[MemoryStore]:
    async with open_memory_store(tree) as opened:
        yield opened


async def add_one(port: int, ledger_id: int = 1) -> object:
    entry = EntryCodec(DigestType.CRC32C, b"").pack(ledger_id, 0, -1, 2, b"hi")
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(v2.encode_request(AddRequest(ledger_id, 0, master_key(b""), entry)))
        frame = b""
        while len(frame) < 28:
            frame += await stream.receive_some(28 - len(frame))
        return v2.decode_reply(frame, 4, 28).reply


async def test_a_bookie_starts_on_an_empty_store_and_leaves_only_its_cookie(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore
) -> None:
    config = attrs.evolve(config_for(tmp_path), network_location="/eu/r1")
    async with running(config, tree) as bookie:
        name = NAME_OF(bookie.port)
        node = await store.get(f"/ledgers/available/{name}")
        assert decode_service_info(node.value).network_location == "/eu/r1"
        endpoint = decode_service_info(node.value).rpc
        assert endpoint is not None
        assert (endpoint.host, endpoint.port, endpoint.extensions) == ("127.0.0.1", bookie.port, ())
        assert (await store.get("/ledgers/LAYOUT")).value == Layout.HIERARCHICAL.text
        assert await add_one(bookie.port) == AddReply(Code.OK, 1, 0)
    assert await store.exists(f"/ledgers/available/{name}") is None
    assert await store.exists(f"/ledgers/cookies/{name}") is not None
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream("127.0.0.1", bookie.port)


async def test_a_bookie_is_announced_only_when_it_can_serve(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore
) -> None:
    seen: list[bool] = []

    class Watching(MemoryStore):
        async def create(self, path: str, value: bytes = b"", **more: bool) -> str:
            made = await super().create(path, value, **more)
            if more.get("ephemeral"):
                port = int(path.rpartition(":")[2])
                seen.append(await add_one(port) == AddReply(Code.OK, 1, 0))
            return made

    @asynccontextmanager
    async def open_watching() -> AsyncIterator[MemoryStore]:
        watching = Watching(tree)
        yield watching
        await watching.aclose()

    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[int]) -> None:
            await run_bookie(
                config_for(tmp_path),
                open_store=open_watching,
                stop=stop,
                machine=MACHINE,
                task_status=task_status,
            )

        await nursery.start(run)
        stop.set()
    assert seen == [True]


@pytest.mark.slow
async def test_a_bookie_starts_again_on_its_directories(tmp_path: Path, tree: MemoryTree) -> None:
    async with running(config_for(tmp_path, "bookieId=mine\n"), tree) as bookie:
        assert await add_one(bookie.port) == AddReply(Code.OK, 1, 0)
    async with running(config_for(tmp_path, "bookieId=mine\n"), tree) as bookie:
        assert await add_one(bookie.port) == AddReply(Code.OK, 1, 0)


async def test_a_bookie_that_waits_for_an_earlier_session_stops_at_once(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore
) -> None:
    node = "/ledgers/available/b1"
    await store.create(node, b"", ephemeral=True, parents=True)  # of an earlier session, which does not end
    stop, waits = trio.Event(), trio.Event()

    class Watching(MemoryStore):
        async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
            if path == node and watch is not None:
                waits.set()
            return await super().exists(path, watch=watch)

    @asynccontextmanager
    async def open_watching() -> AsyncIterator[MemoryStore]:
        watching = Watching(tree)
        yield watching
        await watching.aclose()

    config = config_for(tmp_path, "bookieId=b1\nzkTimeout=600000\n")
    with trio.fail_after(30):  # it would wait for ten minutes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(run_bookie, config, open_store=open_watching, stop=stop, machine=MACHINE)
            )
            await waits.wait()
            stop.set()
    stat = await store.exists(node)
    assert stat is not None
    assert stat.ephemeral_owner == store.session_id, "the node belongs to another session"


async def test_a_foreign_cookie_stops_the_start(tmp_path: Path, tree: MemoryTree, store: MemoryStore) -> None:
    async with running(config_for(tmp_path, "bookieId=mine\n"), tree):
        pass
    with pytest.raises(CookieError, match="bookieId=mine"):
        await run_bookie(
            config_for(tmp_path, "bookieId=other\n"),
            open_store=lambda: open_memory_store(tree),
            machine=MACHINE,
        )
    assert await store.exists("/ledgers/available/other") is None


async def test_a_port_in_use_stops_the_start_before_anything_is_written(
    tmp_path: Path, tree: MemoryTree
) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        config = config_for(tmp_path)
        taken = attrs.evolve(
            config, address=attrs.evolve(config.address, port=listener.socket.getsockname()[1])
        )
        with pytest.raises(ListenError, match="is in use"):
            await run_bookie(taken, open_store=lambda: open_memory_store(tree), machine=MACHINE)
    async with open_memory_store(tree) as store:
        assert await store.exists("/ledgers") is None


async def test_directories_of_a_running_bookie_are_refused(tmp_path: Path, tree: MemoryTree) -> None:
    config = config_for(tmp_path, "bookieId=mine\n")
    async with running(config, tree):
        with pytest.raises(DirectoryInUseError):
            await run_bookie(config, open_store=lambda: open_memory_store(tree), machine=MACHINE)


async def test_another_layout_than_the_clusters_is_refused(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore
) -> None:
    await store.create("/ledgers/LAYOUT", Layout.FLAT.text, parents=True)
    config = config_for(tmp_path)
    demanding = attrs.evolve(config, metadata=attrs.evolve(config.metadata, layout=Layout.HIERARCHICAL))
    with pytest.raises(BookieConfigError, match="has the layout flat"):
        await run_bookie(demanding, open_store=lambda: open_memory_store(tree), machine=MACHINE)
    async with running(config, tree):
        pass


async def test_a_bookie_forced_read_only_is_announced_so_and_refuses_adds(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore
) -> None:
    async with running(config_for(tmp_path, "forceReadOnlyBookie=true\n"), tree) as bookie:
        assert await store.exists(f"/ledgers/available/readonly/{NAME_OF(bookie.port)}") is not None
        assert await store.exists(f"/ledgers/available/{NAME_OF(bookie.port)}") is None
        assert await add_one(bookie.port) == AddReply(Code.READ_ONLY, 1, 0)


class FillingDisk(RealDisk):
    free = 50

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(100, self.free)


FILLING = "diskUsageThreshold=0.9\ndiskUsageWarnThreshold=0.8\ndiskUsageLwmThreshold=0.7\n"


async def test_a_full_disk_makes_it_read_only_and_a_freed_one_writable(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore
) -> None:
    disk = FillingDisk()
    lines = FILLING + "minUsableSizeForHighPriorityWrites=1\ndiskCheckInterval=1\n"
    filling = config_for(tmp_path, lines, full="")
    async with running(filling, tree, disk=disk) as bookie:
        writable = f"/ledgers/available/{NAME_OF(bookie.port)}"
        disk.free = 5
        await wait_gone(store, writable)
        assert await store.exists(f"/ledgers/available/readonly/{NAME_OF(bookie.port)}") is not None
        assert await add_one(bookie.port) == AddReply(Code.READ_ONLY, 1, 0)
        disk.free = 20  # below the mark that made it read-only, above the low mark
        await wait_checks(3)
        assert await add_one(bookie.port) == AddReply(Code.READ_ONLY, 1, 0)
        disk.free = 50
        await wait_gone(store, f"/ledgers/available/readonly/{NAME_OF(bookie.port)}")
        assert await store.exists(writable) is not None
        assert await add_one(bookie.port) == AddReply(Code.OK, 1, 0)


class FastFillingDisk(SmallDisk):
    """The watch sees that it is full only after a write has found no space."""

    def usage(self, path: Path) -> DiskUsage:
        return super().usage(path) if self.has_refused else DiskUsage(self.total_bytes, self.total_bytes // 2)


@pytest.mark.slow
async def test_a_disk_that_fills_up_before_the_watch_sees_it_makes_the_bookie_read_only(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore
) -> None:
    disk = FastFillingDisk(tmp_path, 64 << 20)
    lines = "minUsableSizeForHighPriorityWrites=1\ndiskCheckInterval=1\nflushReserveBytes=0\n"
    async with running(config_for(tmp_path, lines), tree, disk=disk) as bookie:
        writable = f"/ledgers/available/{NAME_OF(bookie.port)}"
        assert await add_one(bookie.port) == AddReply(Code.OK, 1, 0)
        disk.fill()
        await fill_journal(bookie.port)
        assert disk.has_refused
        await wait_gone(store, writable)
        await wait_there(store, f"/ledgers/available/readonly/{NAME_OF(bookie.port)}")
        assert not bookie.ended.is_set()
        assert await add_one(bookie.port, 3) == AddReply(Code.READ_ONLY, 3, 0)
        disk.others_bytes = 0
        await wait_there(store, writable)
        assert await add_one(bookie.port, 3) == AddReply(Code.OK, 3, 0)
        assert await add_one(bookie.port) == AddReply(Code.OK, 1, 0), "the entry is there, and is the same"
    assert bookie.ended.is_set()


async def fill_journal(port: int) -> None:
    """Add entries until the bookie takes no more."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        for entry_id in range(40):
            entry = EntryCodec(DigestType.CRC32C, b"").pack(2, entry_id, -1, 2, bytes(200_000))
            try:
                await stream.send_all(v2.encode_request(AddRequest(2, entry_id, master_key(b""), entry)))
                if not await stream.receive_some(28):
                    return
            except trio.BrokenResourceError:
                return


async def wait_there(store: MemoryStore, path: str) -> None:
    with trio.fail_after(60):
        while True:
            changed = trio.Event()
            if await store.exists(path, watch=changed) is not None:
                return
            await changed.wait()


async def wait_gone(store: MemoryStore, path: str) -> None:
    with trio.fail_after(60):
        while True:
            changed = trio.Event()
            if await store.exists(path, watch=changed) is None:
                return
            await changed.wait()


async def wait_checks(count: int) -> None:
    for _ in range(count):
        await trio.sleep(0.002)


async def test_a_full_disk_stops_a_bookie_that_may_not_be_read_only(tmp_path: Path, tree: MemoryTree) -> None:
    config = config_for(tmp_path, "readOnlyModeEnabled=false\n")
    disk = FillingDisk()
    disk.free = 0
    with pytest.raises(DirectoryError, match="the disk is full"):
        await run_bookie(config, open_store=lambda: open_memory_store(tree), machine=MACHINE, disk=disk)


@pytest.mark.slow
async def test_an_expired_session_does_not_stop_the_bookie(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore
) -> None:
    opened: list[MemoryStore] = []

    @asynccontextmanager
    async def open_store() -> AsyncIterator[MemoryStore]:
        async with open_memory_store(tree) as session:
            opened.append(session)
            yield session

    stop = trio.Event()
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[int]) -> None:
            await run_bookie(
                config_for(tmp_path),
                open_store=open_store,
                stop=stop,
                machine=MACHINE,
                task_status=task_status,
            )

        port: int = await nursery.start(run)
        opened[0].expire()
        with trio.fail_after(60):
            while (await store.exists(f"/ledgers/available/{NAME_OF(port)}")) is None:
                await trio.lowlevel.checkpoint()
        assert len(opened) == 2
        assert await add_one(port) == AddReply(Code.OK, 1, 0)
        stop.set()


async def test_a_failed_storage_stops_the_bookie(tmp_path: Path) -> None:
    config = config_for(tmp_path).storage
    with pytest.raises(StorageFailedError, match="no more sync"):  # noqa: PT012
        async with open_bookie(config) as bookie, trio.open_nursery() as nursery:
            _, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(bookie.serve_stream, theirs)
            bookie.storage.failure.report(OSError("no more sync"), "a test")
            await trio.sleep_forever()


async def test_an_error_in_the_block_of_an_embedded_bookie_is_not_wrapped(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_bookie(config_for(tmp_path).storage):
            raise KeyError("mine")


# Garbage


async def test_only_ledgers_missing_from_the_same_cluster_are_garbage(store: MemoryStore) -> None:
    await store.create("/ledgers/LAYOUT", Layout.HIERARCHICAL.text, parents=True)
    await store.create("/ledgers/cookies/b", parents=True)
    await store.create("/ledgers/00/0000/L0007", b"metadata", parents=True)
    live = LiveLedgers(ClusterNodes(lambda: store, "/ledgers", Layout.HIERARCHICAL), "b", None)
    assert set(await live([5, 7])) & {5, 7} == {7}
    await store.create("/ledgers/INSTANCEID", b"formatted")
    with pytest.raises(ClusterChangedError, match="formatted"):
        await live([5, 7])
    await store.delete("/ledgers/INSTANCEID")
    await store.delete("/ledgers/cookies/b")
    with pytest.raises(ClusterChangedError, match="wiped"):
        await live([5, 7])


async def test_no_ledger_is_garbage_in_a_restored_cluster(store: MemoryStore) -> None:
    """A ledger created after the backup has entries here, and no node."""
    await store.create("/ledgers/LAYOUT", Layout.HIERARCHICAL.text, parents=True)
    await store.create("/ledgers/cookies/b", parents=True)
    await store.create("/ledgers/00/0000/L0007", b"metadata", parents=True)
    live = LiveLedgers(ClusterNodes(lambda: store, "/ledgers", Layout.HIERARCHICAL), "b", None)
    await store.create("/ledgers/RESTORED")
    with pytest.raises(ClusterRestoredError, match="dlog metadata release"):
        await live([5, 7])
    assert set(await live.find([5, 7])) == {5, 7}
    await store.delete("/ledgers/RESTORED")
    assert set(await live([5, 7])) & {5, 7} == set(await live.find([5, 7])) == {7}


@pytest.mark.slow
async def test_a_stranger_begins_few_ledgers_and_they_are_deleted_while_a_real_one_stays(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_ledger_check, "INTERVAL_S", 0)
    config = config_for(tmp_path, "unconfirmedLedgersMax=3\nunconfirmedLedgerGraceSeconds=0\n")
    one = LedgerMetadata(ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=(Ensemble(0, ("b:1",)),))
    async with running(config, tree) as bookie:
        await LedgerCatalog(store, "/ledgers", Layout.HIERARCHICAL).create(one, 1)
        assert await add_one(bookie.port) == AddReply(Code.OK, 1, 0)
        refused = kept = 0
        for ledger_id in range(2, 100):
            reply = await add_one(bookie.port, ledger_id)
            assert isinstance(reply, AddReply)
            refused += reply.code is Code.TOO_MANY_REQUESTS
            kept += reply.code is Code.OK
        assert refused + kept == 98
        with trio.fail_after(60):
            while isinstance(reply, AddReply) and reply.code is Code.TOO_MANY_REQUESTS:
                reply = await add_one(bookie.port, 100)  # until earlier ones are deleted
        assert await add_one(bookie.port) == AddReply(Code.OK, 1, 0)
    async with open_bookie(config.storage) as closed:
        assert 1 in closed.storage.ledger_ids()
        assert len(closed.storage.ledger_ids()) <= 4


@pytest.mark.slow
async def test_the_http_server_runs_from_before_readiness_until_the_stop(
    tmp_path: Path, tree: MemoryTree, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.unit.bookie.http.test_admin import TOKEN, get, send_request

    token_path = tmp_path / "token"
    token_path.write_bytes(TOKEN)
    token_path.chmod(0o600)
    more = f"httpServerEnabled=true\nhttpServerPort=0\nhttpServerTokenPath={token_path}\n"
    more += "compactionReserveBytes=1048576\n"  # a round fills it at a limited rate
    with caplog.at_level(logging.INFO):
        async with running(config_for(tmp_path, more), tree):
            (url,) = re.findall(r"the HTTP server for operators listens at (\S+)", caplog.text)
            assert (await get(url, "state"))["running"]
            assert (await get(url, "gc_details"))[0]["directory"] == f"{tmp_path}/ledgers/current"
            status, _ = await send_request(url, "PUT", "/api/v1/bookie/gc", b'{"forceMajor": true}')
            assert status == 200
            while (await get(url, "gc_details"))[0]["majorCompactionCounter"] == 0:
                await trio.lowlevel.checkpoint()
        with pytest.raises(OSError, match="connect"):
            await send_request(url, "GET", "/heartbeat")


# The process


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BookieConfigError("x"), BookieExit.CONFIG),
        (ListenError("x"), BookieExit.SERVER),
        (StoreUnreachableError("x"), BookieExit.METADATA),
        (RegistrationError("x"), BookieExit.REGISTRATION),
        (CookieError("x"), BookieExit.DISKS),
        (DirectoryInUseError("x"), BookieExit.DISKS),
        (StorageFailedError("x"), BookieExit.DISKS),
        (OSError("x"), BookieExit.DISKS),
        (ZeroDivisionError(), BookieExit.SERVER),
    ],
)
def test_each_failure_has_its_exit_code(error: BaseException, code: BookieExit) -> None:
    assert exit_code_of(error) is code


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", False),
        ("httpServerEnabled=true\n", False),
        ("httpServerEnabled=true\nhttpServerTokenPath=/t\n", True),
        ("httpServerEnabled=true\nhttpServerTlsEnable=true\nhttpServerKeyStorePath=/k\n", True),
        ("bookieAuthProviderFactoryClass=sasl\njava.security.auth.login.config=/j\n", True),
    ],
)
def test_sighup_reads_files_again_if_there_are_any(tmp_path: Path, more: str, expected: bool) -> None:
    """Otherwise the signal ends the process, as when a terminal closes."""
    config = config_for(tmp_path, more)
    assert has_secrets(config) is expected
    handled = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP} if expected else {signal.SIGTERM, signal.SIGINT}
    assert set(signals_of(config)) == handled


def test_a_bad_configuration_ends_the_program_with_its_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bk_server.conf"
    path.write_text("bookieport=1\n")
    assert run_program(path) == BookieExit.CONFIG
    assert "did you mean bookiePort?" in caplog.text


@pytest.mark.slow
async def test_a_new_bookie_has_its_ledgers_in_limbo_before_it_is_announced(
    tmp_path: Path, tree: MemoryTree, store: MemoryStore
) -> None:
    bookie_id = "bookie-a"
    await store.create("/ledgers/LAYOUT", Layout.HIERARCHICAL.text, parents=True)
    metadata = LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1, ensembles=(Ensemble(0, (bookie_id,)),)
    )
    await LedgerCatalog(store, "/ledgers", Layout.HIERARCHICAL).create(metadata, 1)
    async with running(config_for(tmp_path, f"bookieId={bookie_id}\n"), tree) as bookie:
        assert await add_one(bookie.port) == AddReply(Code.FENCED, 1, 0)
        assert (tmp_path / "ledgers/current/DIRTY").exists()
        assert not (tmp_path / "ledgers/current/DOUBT").exists()
    assert not (tmp_path / "ledgers/current/DIRTY").exists(), "stopped cleanly"
