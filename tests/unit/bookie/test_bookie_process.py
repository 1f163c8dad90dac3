"""A bookie as a process with a real ZooKeeper: start, kill, second start, clean stop."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from dlog.cluster.zookeeper_process import start_zookeeper, stop_zookeeper
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.wire import v2
from ledger.wire.messages import AddReply, AddRequest, ReadReply, ReadRequest, Reply, Request
from tests.places import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper]

ENTRIES = EntryCodec(DigestType.CRC32C, b"")
KEY = master_key(b"")
READY_S = 40.0
STOP_S = 10.0
SHIPPED = ROOT / "tests" / "golden" / "configurations"
PLACES = {  # keys with addresses and directories of a machine
    "advertisedAddress",
    "allowEphemeralPorts",
    "allowLoopback",
    "bookiePort",
    "httpServerPort",
    "journalDirectories",
    "journalDirectory",
    "ledgerDirectories",
    "listeningInterface",
    "metadataServiceUri",
    "zkServers",
    "zkTimeout",
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = trio.run(start_zookeeper, tmp_path_factory.mktemp("zookeeper"))
    yield server.hosts
    trio.run(stop_zookeeper, server.identity)


@attrs.define(eq=False)
class BookieProcess:
    process: trio.Process
    log: str = ""
    port: int = 0

    async def wait_ready(self) -> None:
        with trio.fail_after(READY_S):
            while " is ready" not in self.log:
                assert await self._read(), f"it ended:\n{self.log}"
        line = next(line for line in self.log.splitlines() if " is ready" in line)
        self.port = int(line.rpartition(" ")[2])

    async def wait_ended(self) -> int:
        with trio.fail_after(READY_S):
            while await self._read():
                pass
            return await self.process.wait()

    async def _read(self) -> bool:
        assert self.process.stderr is not None
        chunk = await self.process.stderr.receive_some(65536)
        self.log += bytes(chunk).decode()
        return bool(chunk)

    async def call(self, request: Request) -> Reply:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            await stream.send_all(v2.encode_request(request))
            data = b""
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                data += await stream.receive_some(65536)
            return v2.decode_reply(data, 4, len(data)).reply


@asynccontextmanager
async def started(config: Path) -> AsyncIterator[BookieProcess]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "bookie", "--config", str(config)], stderr=subprocess.PIPE
    )
    try:
        yield BookieProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def configured(directory: Path, hosts: str, root: str, *more: str) -> Path:
    path = directory / f"bk_server-{len(list(directory.iterdir()))}.conf"
    lines = (
        f"metadataServiceUri=zk+hierarchical://{hosts}{root}",
        "zkTimeout=4000",
        "listeningInterface=lo",
        "allowLoopback=true",
        "bookieId=mine",
        "bookiePort=0",
        "allowEphemeralPorts=true",
        f"journalDirectories={directory}/journal",
        f"ledgerDirectories={directory}/ledgers",
        "diskUsageThreshold=1.0",
        "diskUsageWarnThreshold=1.0",
        "numAddWorkerThreads=1",
        *more,
    )
    path.write_text("\n".join(lines))
    return path


async def test_a_bookie_process_survives_a_kill_and_stops_cleanly(tmp_path: Path, hosts: str) -> None:
    config = configured(tmp_path, hosts, "/killed")
    entry = ENTRIES.pack(1, 0, -1, 5, b"hello")
    async with started(config) as bookie:
        await bookie.wait_ready()
        text = "they tune threads, buffers or classes of Java's bookie"
        assert f"keys without effect ({text}): numAddWorkerThreads" in bookie.log
        assert await bookie.call(AddRequest(1, 0, KEY, entry)) == AddReply(Code.OK, 1, 0)
        fence = ReadRequest(2, -1, fence=True, master_key=KEY)
        assert await bookie.call(fence) == ReadReply(Code.NO_ENTRY, 2, -1)
        bookie.process.kill()
        await bookie.wait_ended()
    async with started(config) as bookie:
        await bookie.wait_ready()  # after the node of the earlier session has vanished
        assert await bookie.call(ReadRequest(1, 0)) == ReadReply(Code.OK, 1, 0, entry)
        refused = AddRequest(2, 0, KEY, ENTRIES.pack(2, 0, -1, 5, b"hello"))
        assert await bookie.call(refused) == AddReply(Code.FENCED, 2, 0)
        async with open_zookeeper_store(hosts) as store:
            assert await store.exists("/killed/available/mine") is not None
            bookie.process.send_signal(signal.SIGTERM)
            with trio.fail_after(STOP_S):
                assert await bookie.wait_ended() == 0
            assert await store.exists("/killed/available/mine") is None
            assert await store.exists("/killed/cookies/mine") is not None


async def test_each_refusal_to_start_has_one_line_and_an_exit_code(tmp_path: Path, hosts: str) -> None:
    async with started(configured(tmp_path, hosts, "/refusing")) as bookie:
        await bookie.wait_ready()
        await expect_end(configured(tmp_path, hosts, "/refusing"), 5, "is in use by another process")
        taken = configured(tmp_path, hosts, "/refusing", f"bookiePort={bookie.port}")
        text = taken.read_text().replace("bookiePort=0\n", "")
        taken.write_text(text)
        await expect_end(taken, 2, "is in use: another bookie")
        bookie.process.send_signal(signal.SIGTERM)
        assert await bookie.wait_ended() == 0
    foreign = configured(tmp_path, hosts, "/refusing")
    foreign.write_text(foreign.read_text().replace("bookieId=mine", "bookieId=other"))
    await expect_end(foreign, 5, "bookieId=mine")
    await expect_end(configured(tmp_path, hosts, "/refusing", "journalDirs=/x"), 1, "journalDirectories")
    await expect_end(configured(tmp_path, "127.0.0.1:1", "/refusing"), 3, "127.0.0.1:1")


async def expect_end(config: Path, code: int, words: str) -> None:
    async with started(config) as bookie:
        assert await bookie.wait_ended() == code, bookie.log
        assert words in bookie.log
        assert "Traceback" not in bookie.log


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    sorted(each.name for each in SHIPPED.glob("*.conf") if not each.stem.endswith(("documented", "tls"))),
)
async def test_a_bookie_serves_with_a_configuration_that_apache_shipped(
    name: str, tmp_path: Path, hosts: str
) -> None:
    kept = [
        line
        for line in (SHIPPED / name).read_text("utf-8").splitlines()
        if line.partition("=")[0] not in PLACES
    ]
    async with started(configured(tmp_path, hosts, f"/{name}", "httpServerPort=0", *kept)) as bookie:
        await bookie.wait_ready()
        bookie.process.send_signal(signal.SIGTERM)
        assert await bookie.wait_ended() == 0
