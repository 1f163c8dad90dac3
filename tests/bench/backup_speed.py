"""The speed of backups beside SQLite's, for docs/backup.md: python -m tests.bench.backup_speed DIRECTORY."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trio

import dlog
from dlog.backup import ReplicaStatus, open_backups

RECORDS, RECORD_BYTES = 1_000_000, 200
RATE, RATE_S = 10_000, 20  # records a second, seconds
PAYLOAD = bytes(range(RECORD_BYTES))


def size_of(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def line(name: str, seconds: float, size_bytes: int) -> None:
    print(
        f"{name:32} {seconds:7.2f} s {size_bytes / 1e6:8.1f} MB {size_bytes / seconds / 1e6:7.1f} MB/s",
        flush=True,
    )


async def of_dlog(top: Path) -> None:
    uri, destination = (top / "log").as_uri(), top / "backups"
    async with dlog.open_namespace(uri) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            for _ in range(RECORDS // 1000):
                await writer.append_many([PAYLOAD] * 1000)
        began_s = time.perf_counter()
        made = await namespace.backup.make(destination)
        line("dlog backup, first", time.perf_counter() - began_s, made.size_bytes)
        async with namespace.open_writer("orders") as writer:
            await writer.append_many([PAYLOAD] * 1000)
        sent: list[int] = []
        began_s = time.perf_counter()
        await namespace.backup.make(
            destination, on_progress=lambda progress: sent.append(progress.bytes_sent)
        )
        line("dlog backup, 1,000 records more", time.perf_counter() - began_s, sent[-1])
    async with open_backups(destination) as backups:
        began_s = time.perf_counter()
        verified = await backups.verify()
        line("dlog backup verify", time.perf_counter() - began_s, verified.size_bytes)
        began_s = time.perf_counter()
        restored = await backups.restore(top / "restored")
        line("dlog restore", time.perf_counter() - began_s, restored.size_bytes)


async def behind(top: Path) -> None:
    """How old the newest manifest is, looked at just before each round, at a steady rate."""
    uri, behind_s = (top / "steady").as_uri(), []
    last_ms = 0

    def on_round(status: ReplicaStatus) -> None:
        nonlocal last_ms
        if status.cut_ms is not None:
            if last_ms:
                behind_s.append((namespace.context.wall_ms() - last_ms) / 1000)
            last_ms = status.cut_ms

    async with (
        dlog.open_namespace(uri) as namespace,
        namespace.open_writer("orders", create=True) as writer,
        trio.open_nursery() as nursery,
    ):

        async def replicate() -> None:
            await namespace.backup.replicate(top / "replica", on_round=on_round)

        nursery.start_soon(replicate)
        began_s = trio.current_time()
        for tick in range(RATE_S * 100):
            await writer.append_many([PAYLOAD] * (RATE // 100))
            await trio.sleep_until(began_s + tick / 100)
        nursery.cancel_scope.cancel()
    behind_s.sort()
    print(f"behind at most: median {behind_s[len(behind_s) // 2]:.2f} s, most {behind_s[-1]:.2f} s")
    sent, payloads = size_of(top / "replica") / 1e6, RATE * RATE_S * RECORD_BYTES / 1e6
    print(f"sent {sent:.1f} MB of {payloads:.1f} MB of payloads")


def of_sqlite(top: Path) -> None:
    database = sqlite3.connect(top / "records.sqlite")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE record (number INTEGER PRIMARY KEY, payload BLOB)")
    with database:
        database.executemany("INSERT INTO record (payload) VALUES (?)", ((PAYLOAD,) for _ in range(RECORDS)))

    def api() -> None:
        with sqlite3.connect(top / "api.sqlite") as copy:
            database.backup(copy)

    copied = top / "vacuum.sqlite"
    steps: list[tuple[str, Callable[[], object], Path]] = [
        ("VACUUM INTO", lambda: database.execute("VACUUM INTO ?", (str(copied),)), copied),
        ("sqlite3 .backup", api, top / "api.sqlite"),
    ]
    for name, make, path in steps:
        began_s = time.perf_counter()
        make()
        line(name, time.perf_counter() - began_s, path.stat().st_size)


def main() -> None:
    top = Path(sys.argv[1])
    top.mkdir()
    of_sqlite(top)
    trio.run(of_dlog, top)
    trio.run(behind, top)


if __name__ == "__main__":
    main()
