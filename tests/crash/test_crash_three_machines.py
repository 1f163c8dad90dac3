"""The recipe for three machines of docs/running.md, on three network namespaces: one machine is cut off."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import PIPE

import pytest
import trio

from tests.machines import Machine, Machines, open_machines
from tests.places import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]

DLOG = [sys.executable, "-m", "dlog.cli.main"]
# Short sessions: the cluster notices the cut in seconds. Java of a short life compiles less.
COMMON = f"""
[defaults]
dlog = {json.dumps(DLOG)}
environment = {{ PYTHONPATH = "{ROOT}", JDK_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1" }}
autorecovery = false
zookeeper_heap_mib = 64
[bookie]
zkTimeout = 3000
diskUsageThreshold = 0.99
diskUsageWarnThreshold = 0.98
minUsableSizeForEntryLogCreation = 100000000
[zookeeper]
tickTime = 500
"""


class ThreeMachines:
    """A cluster by a hosts file, and commands on its machines."""

    def __init__(self, machines: Machines, directory: Path) -> None:
        self.machines = machines
        self.hosts = directory / "hosts.toml"
        self.hosts.write_text(
            COMMON
            + "".join(
                f'[hosts.m{one.number}]\naddress = "{one.address}"\nrun = {json.dumps(one.run)}\n'
                f'directory = "{directory}/m{one.number}"\nzookeeper = {one.number}\n'
                for one in machines.all
            )
        )

    async def cluster(self, action: str) -> dict[str, list[dict[str, object]]]:
        done = await trio.run_process(
            [*DLOG, "cluster", action, "--hosts", str(self.hosts), "--json"],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    async def wait_state(self, machine: Machine, state: str, *, seen_from: Machine) -> None:
        """Wait until a machine sees the bookie of another one, or its own, in this state."""
        service = f"zk://{';'.join(f'{one.address}:2181' for one in self.machines.all)}/ledgers"
        look = [*seen_from.run, *DLOG, "bookies", "list", "--json", "--service", service]
        state_of: dict[str, str] = {}
        while state_of.get(f"{machine.address}:3181") != state:
            # While members of ZooKeeper elect a leader, a look may fail.
            done = await trio.run_process(look, capture_stdout=True, check=False)
            state_of = {each["bookie"]: each["state"] for each in json.loads(done.stdout or b"[]")}


@pytest.fixture
def three(tmp_path: Path) -> Iterator[ThreeMachines]:
    with open_machines(3) as machines:
        yield ThreeMachines(machines, tmp_path)


def lines(first: int, last: int) -> bytes:
    return b"".join(b"order %d\n" % number for number in range(first, last + 1))


async def read_to(process: trio.Process, number: int) -> None:
    """Read the output of `dlog tail` up to a record."""
    assert process.stdout is not None
    ended = b""
    while not ended.endswith(b"order %d\n" % number):
        chunk = await process.stdout.receive_some()
        assert chunk, "the reader has ended"
        ended = (ended + chunk)[-100:]


async def test_a_machine_is_cut_off_the_writer_goes_on_and_nothing_is_lost(three: ThreeMachines) -> None:
    one, _, cut_off = three.machines.all
    with trio.fail_after(150):
        started = await three.cluster("start")
        assert [each["state"] for each in started["programs"]] == ["started"] * 6
        uri = str(started["uri"])
        at_one = [*one.run, *DLOG]
        here = ["orders", "--uri", f"{uri}?session_timeout_ms=6000"]
        await trio.run_process([*at_one, "log", "create", *here], capture_stdout=True)
        async with trio.open_nursery() as nursery:
            write = partial(trio.run_process, [*at_one, "write", *here], stdin=PIPE)
            writer: trio.Process = await nursery.start(write)
            assert writer.stdin is not None
            await writer.stdin.send_all(lines(1, 300))
            tail = [*at_one, "tail", *here, "--from", "earliest", "--count", "1000"]
            reader: trio.Process = await nursery.start(partial(trio.run_process, tail, stdout=PIPE))
            await read_to(reader, 300)

            three.machines.cut(cut_off)
            assert not cut_off.has_link
            await writer.stdin.send_all(lines(301, 600))
            await read_to(reader, 600)  # what a reader sees is acknowledged
            await three.wait_state(cut_off, "away", seen_from=one)
            await writer.stdin.send_all(lines(601, 900))
            await read_to(reader, 900)

            three.machines.mend(cut_off)
            await writer.stdin.send_all(lines(901, 1000))
            await read_to(reader, 1000)
            await writer.stdin.aclose()
        await three.wait_state(cut_off, "writable", seen_from=cut_off)
        read = await trio.run_process(
            [*cut_off.run, *DLOG, "read", "orders", "--uri", uri], capture_stdout=True
        )
        assert read.stdout == lines(1, 1000), "each record once and in order, also from the machine cut off"
        stopped = await three.cluster("stop")
        assert [each["state"] for each in stopped["programs"]] == ["stopped"] * 6
