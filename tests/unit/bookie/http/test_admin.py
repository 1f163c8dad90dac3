"""HTTP for operators: Apache's paths and bodies, over a real socket."""

# covers: bookie/http/routes/gc.py
# covers: bookie/http/routes/health.py
# covers: bookie/http/server.py

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from bookie.config.admin_config import AdminConfig
from bookie.config.bookie_config import parse_config
from bookie.disk.fullness import FullnessConfig
from bookie.disk.real_disk import RealDisk
from bookie.disk_watch import DiskWatch, DiskWatchConfig, WatchedDisks
from bookie.errors import BookieConfigError, ListenError
from bookie.gc.collector import GarbageCollector
from bookie.gc.compaction_rules import CompactionConfig
from bookie.http import Admin, serve_admin
from bookie.ledger_metadata.live_ledgers import ServedLedgers
from bookie.requests.session import BookieService
from bookie.storage.config import StorageConfig
from bookie.storage.opening import open_storage

TOKEN = b"0123456789abcdef0123456789abcdef"
HOST = "Host: localhost:8080\r\n"
AUTHORIZED = f"{HOST}Authorization: Bearer {TOKEN.decode()}\r\n"


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[Admin, str]]:
    storage_config = StorageConfig(
        journal_directories=(directory / "j",),
        ledger_directories=(directory / "l1", directory / "l2"),
        compaction=CompactionConfig(reserve_bytes=1 << 20),  # a round fills it at a limited rate
    )
    async with open_storage(RealDisk(), storage_config) as storage:
        service = BookieService(storage)

        async def all_live(ids: Any) -> Any:
            return ids

        garbage = GarbageCollector(ServedLedgers(service), all_live)
        watch = DiskWatch(
            service.rights,
            None,  # type: ignore[arg-type]  # it announces nothing here
            WatchedDisks(RealDisk(), storage_config.ledger_directories),
            DiskWatchConfig(FullnessConfig(full=1.0, warn=1.0, low=1.0)),
            wall_ms=lambda: 1_000_000,
        )
        admin = Admin("me:3181", service, garbage, watch, wall_ms=lambda: 1_000_000, is_ready=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(garbage.run)
            token_path = directory / "token"
            token_path.write_bytes(TOKEN)
            token_path.chmod(0o600)
            config = AdminConfig(port=0, token_path=token_path)
            url = await nursery.start(serve_admin, admin, config)
            yield admin, url
            nursery.cancel_scope.cancel()


async def send_request(
    url: str, method: str, path: str, body: bytes = b"", *, headers: str = AUTHORIZED
) -> tuple[int, bytes]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    async with stream:
        head = (
            f"{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        await stream.send_all(head.encode() + body)
        reply = b""
        async for chunk in stream:
            reply += chunk
    status, _, rest = reply.partition(b"\r\n")
    return int(status.split()[1]), rest.partition(b"\r\n\r\n")[2]


async def get(url: str, path: str) -> Any:
    status, body = await send_request(url, "GET", f"/api/v1/bookie/{path}")
    assert status == 200
    return json.loads(body)


async def put(url: str, path: str, body: object = None) -> tuple[int, bytes]:
    data = b"" if body is None else json.dumps(body).encode()
    return await send_request(url, "PUT", f"/api/v1/bookie/{path}", data)


async def test_garbage_collection_is_forced_and_reported(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, url):
        assert await get(url, "gc") == {"is_in_force_gc": "false"}
        before = await get(url, "gc_details")
        assert [one["majorCompactionCounter"] for one in before] == [0, 0]
        assert [one["lastMajorCompactionTime"] for one in before] == [0, 0]
        status, body = await put(url, "gc", {"forceMajor": True, "forceMinor": False})
        assert (status, json.loads(body)) == (200, "Triggered GC on BookieServer: me:3181")
        while admin.garbage.state.rounds < 1:
            await get(url, "gc")
        after = (await get(url, "gc_details"))[0]
        assert (after["majorCompactionCounter"], after["minorCompactionCounter"]) == (1, 0)
        assert 900_000 < after["lastMajorCompactionTime"] <= 1_000_000
        assert (await put(url, "gc"))[0] == 200
        while admin.garbage.state.rounds < 2:
            await get(url, "gc")


async def test_compaction_is_suspended_and_resumed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, url):
        assert (await put(url, "gc/suspend_compaction", {"suspendMajor": True}))[0] == 200
        expected = {"isMajorGcSuspended": "true", "isMinorGcSuspended": "false"}
        assert await get(url, "gc/suspend_compaction") == expected
        assert (await put(url, "gc/resume_compaction", {"resumeMajor": True, "resumeMinor": True}))[0] == 200
        expected = {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
        assert await get(url, "gc/suspend_compaction") == expected


async def test_the_state_is_reported_and_read_only_is_set_by_hand(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, url):
        assert await get(url, "state") == {
            "running": True, "readOnly": False, "shuttingDown": False, "availableForHighPriorityWrites": True,
        }  # fmt: skip
        status, body = await put(url, "state/readonly", {"readOnly": True})
        assert (status, json.loads(body)) == (200, {"readOnly": True})
        was_writable = admin.service.rights.writable
        assert await get(url, "state/readonly") == {"readOnly": True}
        assert (await put(url, "state/readonly", {"readOnly": False}))[0] == 200
        assert (was_writable, admin.service.rights.writable) == (False, True)
        info = await get(url, "info")
        assert 0 < info["freeSpace"] <= info["totalSpace"]
        assert await send_request(url, "GET", "/heartbeat") == (200, b"OK\n")
        assert await send_request(url, "GET", "/api/v1/bookie/is_ready") == (200, b"OK")
        admin.is_stopping = True
        assert (await send_request(url, "GET", "/api/v1/bookie/is_ready"))[0] == 503


async def test_what_changes_the_bookie_is_in_the_audit_log_or_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "audit.log"
    monkeypatch.setenv("DLOG_AUDIT_LOG", str(file))
    async with serving(tmp_path) as (admin, url):
        await get(url, "state")
        assert (await put(url, "gc", {"forceMajor": True}))[0] == 200
        assert (await put(url, "gc", {"forceMajor": "yes"}))[0] == 400
        done, failed = [json.loads(line) for line in file.read_text().splitlines()]
        assert (done["act"], done["result"]) == ("PUT /api/v1/bookie/gc", "done")
        assert done["target"] == 'me:3181 {"forceMajor": true}'
        assert done["identity"] == "HTTP 127.0.0.1"
        assert failed["result"].startswith("failed: BadRequestError")
        monkeypatch.setenv("DLOG_AUDIT_LOG", str(tmp_path / "missing" / "audit.log"))
        assert (await put(url, "state/readonly", {"readOnly": True}))[0] == 503
        assert admin.service.rights.writable


async def test_metrics_have_the_names_of_apaches_bookie(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, url):
        status, body = await send_request(url, "GET", "/metrics")
        assert status == 200
        lines = body.decode().splitlines()
        assert "bookie_SERVER_STATUS 1" in lines
        assert "bookie_ledger_num_dirs 2" in lines
        assert "# TYPE bookie_gc_MAJOR_COMPACTION_TOTAL counter" in lines
        for line in lines:
            # NaN: no samples yet.
            assert line.startswith("# ") or not float(line.rsplit(maxsplit=1)[1]) < -1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("gc", b"[1]"),
        ("gc", b"{"),
        ("gc", b'{"forceMajor": "true"}'),
        ("gc/suspend_compaction", b"{}"),
        ("gc/resume_compaction", b'{"resumeMajor": false}'),
        ("state/readonly", b"{}"),
        ("gc", b" " * 100_000),
    ],
)
async def test_an_invalid_request_is_refused_with_a_message(tmp_path: Path, path: str, body: bytes) -> None:
    async with serving(tmp_path) as (admin, url):
        status, reply = await send_request(url, "PUT", f"/api/v1/bookie/{path}", body)
        assert status == 400
        assert reply.endswith(b"\n")
        assert admin.garbage.state.rounds == 0
        assert (await send_request(url, "GET", "/api/v1/bookie/nothing"))[0] == 404
        assert (await send_request(url, "POST", "/api/v1/bookie/gc"))[0] == 405


async def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as (admin, url):
        port = int(url.rpartition(":")[2])
        with pytest.raises(ListenError, match="cannot listen at 127"):
            await serve_admin(admin, AdminConfig(host="127.0.0.1", port=port))


def test_the_server_is_off_unless_the_file_enables_it() -> None:
    base = "zkServers=zk1\njournalDirectories=/j\nledgerDirectories=/l\n"
    assert parse_config(base + "httpServerPort=1\n", "f").admin is None
    on = parse_config(
        base + "httpServerEnabled=true\nhttpServerHost=127.0.0.1\nhttpServerPort=9\n", "f"
    ).admin
    assert on == AdminConfig(host="127.0.0.1", port=9)
    assert parse_config(base + "httpServerEnabled=true", "f").admin == AdminConfig(
        host="127.0.0.1", port=8080
    )
    with pytest.raises(BookieConfigError, match="httpServerKeyStorePath"):
        parse_config(base + "httpServerEnabled=true\nhttpServerTlsEnable=true", "f")
