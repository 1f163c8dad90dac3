"""The producers of `tail --rate` stamp each record with its due time, however late they are."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import dlog
from tests.bench.peers.table import FLOOR
from tests.bench.schedule import NS
from tests.bench.work import dlog_tail, peer_tail
from tests.bench.work.job import STAMP, Job, stamped

RECORDS, RATE = 20, 100.0


class LateLink:
    """Says that the schedule began a second before; reads the payloads when the producer is done."""

    def __init__(self, read_payloads: Callable[[], None]) -> None:
        self.start_ns = time.monotonic_ns() - NS
        self.events: list[str] = []
        self._read_payloads = read_payloads

    def read_job(self) -> Job:
        raise AssertionError("the test gives the job")

    def send(self, event: str, **_values: object) -> None:
        self.events.append(event)

    def receive(self) -> dict[str, Any]:
        if self.events == ["ready"]:
            return {"start_ns": self.start_ns}
        self._read_payloads()
        return {"stop": True}

    async def receive_in_loop(self) -> dict[str, Any]:
        return await trio.to_thread.run_sync(self.receive)


def job(system: str, address: dict[str, Any]) -> Job:
    return Job(
        role="produce", system=system, address=address, records=RECORDS, size=40, rate=RATE, left_out=1
    )


def check(payloads: list[bytes], start_ns: int) -> None:
    expected = [
        STAMP.unpack(stamped(start_ns + number * NS // 100, number, b"")) for number in range(RECORDS)
    ]
    assert [STAMP.unpack_from(payload) for payload in payloads] == expected


def test_a_late_producer_of_a_peer_stamps_due_times(tmp_path: Path) -> None:
    address = {"directory": str(tmp_path), "files": 1}
    payloads: list[bytes] = []

    def read() -> None:
        data = (tmp_path / "data-0").read_bytes()
        payloads.extend(data[first : first + 40] for first in range(0, len(data), 40))

    link = LateLink(read)
    peer_tail.produce(job(FLOOR.name, address), link)  # type: ignore[arg-type]
    check(payloads, link.start_ns)
    assert link.events == ["ready", "mark", "done"]


@pytest.mark.slow
def test_a_late_producer_of_dlog_stamps_due_times(tmp_path: Path) -> None:
    payloads: list[bytes] = []

    async def read_log() -> None:
        async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
            (log,) = await namespace.list_logs()
            async with namespace.open_reader(log, follow=False) as reader:
                while records := await reader.read_batch(RECORDS):
                    payloads.extend(map(bytes, records.payloads()))

    link = LateLink(lambda: trio.run(read_log))
    dlog_tail.produce(job("dlog", {"uri": tmp_path.as_uri()}), link)  # type: ignore[arg-type]
    check(payloads, link.start_ns)
    assert link.events == ["ready", "mark", "done"]
