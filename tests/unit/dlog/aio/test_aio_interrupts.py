"""Ctrl-C in a program that drives its asyncio loop itself: the program gets it, and closes what it opened."""

# covers: dlog/aio/bridge.py

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dlog
import dlog.aio
import dlog.blocking
from tests.places import ROOT

PROGRAM = """
import asyncio, signal, sys
import dlog.aio

async def main():
    async with dlog.aio.open_namespace(sys.argv[1]) as namespace:
        async with namespace.open_writer("orders", create=True) as writer:
            while True:
                print(await writer.append(b"1"), flush=True)
                await (asyncio.sleep(3600) if sys.argv[2] == "idle" else asyncio.sleep(0))

loop = asyncio.new_event_loop()
task = loop.create_task(main())
try:
    loop.run_until_complete(task)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    task.cancel()
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        print("closed", flush=True)
loop.close()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["idle", "appending"])
def test_an_interrupt_reaches_a_program_in_run_until_complete(tmp_path: Path, moment: str) -> None:
    uri = tmp_path.as_uri()
    command = [sys.executable, "-W", "error", "-c", PROGRAM, uri, moment]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        acknowledged = [program.stdout.readline().strip() for _ in range(1 if moment == "idle" else 50)]
        os.kill(program.pid, signal.SIGINT)
        try:
            *more, interrupted, closed = program.communicate(timeout=120)[0].split()
        finally:
            program.kill()  # if it has not ended
    assert (interrupted, closed, program.returncode) == ("interrupted", "closed", 0)
    with (
        dlog.blocking.open_namespace(uri) as namespace,
        namespace.open_reader("orders", follow=False) as reader,
    ):
        found = [str(record.dlsn) for record in reader]
    assert found[: len(acknowledged) + len(more)] == acknowledged + more


def test_a_second_interrupt_is_raised_at_once_in_a_step_that_does_not_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with dlog.aio.open_namespace(tmp_path.as_uri()):
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # the next one waits again

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()
    task = loop.create_task(main())
    try:
        for _ in range(2):  # the first one was raised, and is in the loop all the same
            with pytest.raises(KeyboardInterrupt):
                loop.run_until_complete(task)
        loop.run_until_complete(task)
    finally:
        loop.close()
        signal.signal(signal.SIGINT, before)


def test_a_handler_of_the_programs_own_stays(tmp_path: Path) -> None:
    async def main() -> object:
        async with dlog.aio.open_namespace(tmp_path.as_uri()):
            return signal.getsignal(signal.SIGINT)

    def own(*_: object) -> None:
        pass

    before = signal.signal(signal.SIGINT, own)
    try:
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(main()) is own
        loop.close()
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
