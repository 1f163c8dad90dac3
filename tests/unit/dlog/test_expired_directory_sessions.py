"""Sessions of a directory: who keeps one, and what goes on after one that ended.

A session lasts as long as its process. It ends earlier only if its lock file is removed.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import pytest
import trio

import dlog
from dlog.namespace_handle import Namespace


def end_session(namespace: Namespace, directory: Path) -> None:
    """Remove the lock file of the session, as a program that cleans up does."""
    remove_lock_file(directory, namespace.context.store.session_id)


def remove_lock_file(directory: Path, session_id: int) -> None:
    (directory / "metadata.sqlite-sessions" / f"{session_id}.lock").unlink()


@asynccontextmanager
async def two_namespaces(directory: Path) -> AsyncIterator[tuple[Namespace, Namespace]]:
    """The first one hosts the bookie; the second one reaches it by the socket."""
    with trio.fail_after(120):
        async with (
            dlog.open_namespace(directory.as_uri()) as one,
            dlog.open_namespace(directory.as_uri()) as two,
        ):
            yield one, two


async def payloads(namespace: Namespace, log: str = "log") -> list[bytes]:
    async with namespace.open_reader(log, follow=False) as reader:
        return [record.payload async for record in reader]


@pytest.mark.slow
@pytest.mark.parametrize("host_loses", [True, False])
async def test_readers_cursors_and_writers_of_a_directory_go_on_after_their_session_ended(
    tmp_path: Path, *, host_loses: bool
) -> None:
    async with two_namespaces(tmp_path) as (host, guest):
        loser, other = (host, guest) if host_loses else (guest, host)
        await host.create_log("log")
        async with (
            loser.open_reader("log", cursor="c") as reader,
            loser.open_writer("log") as writer,
        ):
            await writer.append(b"0")
            await writer.flush()
            assert (await anext(reader)).payload == b"0"
            await reader.commit()
            end_session(loser, tmp_path)
            async with other.open_writer("log") as successor:  # the lock went with the session
                await successor.append(b"1")
            assert (await anext(reader)).payload == b"1"
            await reader.commit()
            with pytest.raises((dlog.LogFencedError, dlog.LogLockLostError)):
                await writer.append(b"refused")
            await writer.reopen()
            last = await writer.append(b"2")
            await writer.flush()
            assert (await anext(reader)).payload == b"2"
            cursor = await reader.commit()
        assert cursor is not None
        assert cursor.position > last
        assert await payloads(other) == [b"0", b"1", b"2"]


@pytest.mark.slow
async def test_records_in_flight_of_a_directory_get_one_outcome_and_a_reopened_writer_goes_on(
    tmp_path: Path,
) -> None:
    async with two_namespaces(tmp_path) as (one, two):
        async with one.open_writer("log", create=True) as writer:
            await writer.append(b"durable")
            pendings = [writer.submit(b"%d" % number) for number in range(50)]
            end_session(one, tmp_path)
            assert await two.log_exists("log")  # its call ends the session
            with suppress(dlog.WriteError):  # before the writer notices, it takes and writes more
                while True:
                    pendings.append(writer.submit(b"%d" % len(pendings)))
                    await pendings[-1]
            durable = []
            for number, pending in enumerate(pendings):
                with suppress(dlog.WriteError):
                    await pending
                    durable.append(b"%d" % number)
            await writer.reopen()
            await writer.append(b"after")
            outcomes = [pending.outcome for pending in pendings]
            assert dlog.RecordOutcome.PENDING not in outcomes
            await writer.flush()
        stored = await payloads(two)
        kept = [b"%d" % n for n, each in enumerate(outcomes) if each is dlog.RecordOutcome.DURABLE]
        assert set(durable) <= set(kept)
        assert stored == [b"durable", *kept, b"after"]


@pytest.mark.slow
async def test_a_namespace_whose_directory_was_replaced_is_lost_and_changes_nothing_there(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "here"
    async with two_namespaces(directory) as (one, two):
        async with one.open_writer("log", create=True) as writer:
            await writer.append(b"0")
        directory.rename(tmp_path / "elsewhere")
        for namespace in (one, two):
            with pytest.raises(dlog.NamespaceLostError, match="the file was removed while it was open"):
                await namespace.log_exists("log")
            with pytest.raises(dlog.NamespaceLostError):
                async with namespace.open_writer("log"):
                    pass
        assert not directory.exists()


# A process with a follower of "feed", and a writer of "log" that appends each line it is given. Every line it
# prints says what happened.
FOLLOW_AND_WRITE = """
import sys, trio, dlog

def tell(*words):
    print(*words, flush=True)

async def follow(namespace):
    async with namespace.open_reader("feed", cursor="c") as reader:
        async for record in reader:
            tell("read", record.payload.decode())
            await reader.commit()

async def main():
    async with dlog.open_namespace(sys.argv[1]) as namespace, trio.open_nursery() as nursery:
        nursery.start_soon(follow, namespace)
        async with namespace.open_writer("log", create=True) as writer:
            tell("session", namespace.context.store.session_id)
            while line := await trio.to_thread.run_sync(sys.stdin.readline):
                try:
                    await writer.append(line.strip().encode())
                    tell("wrote", line.strip())
                except dlog.WriteError:
                    tell("refused")
                    await writer.reopen()
                    tell("reopened")
        nursery.cancel_scope.cancel()
trio.run(main)
"""


class Program:
    """The process, and the lines that it printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    async def hear(self, *wanted: str) -> None:
        """Return when the process has printed these lines, in any order."""
        assert self.process.stdout is not None
        left = set(wanted)
        with trio.fail_after(120):
            while left:
                line = (await trio.to_thread.run_sync(self.process.stdout.readline)).strip()
                assert line, f"the process ended after {self.lines}"
                self.lines.append(line)
                left.discard(line)


@contextmanager
def program(uri: str) -> Iterator[Program]:
    with subprocess.Popen(
        [sys.executable, "-c", FOLLOW_AND_WRITE, uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


async def stop_between_transactions(process: subprocess.Popen[str], directory: Path) -> None:
    """Stop the process while it does not lock the database: it still commits its cursor."""
    with trio.fail_after(60):
        while True:
            process.send_signal(SIGSTOP)
            await trio.to_thread.run_sync(os.waitid, os.P_PID, process.pid, os.WSTOPPED)
            if await trio.to_thread.run_sync(is_free, directory / "metadata.sqlite"):
                return
            process.send_signal(SIGCONT)


def is_free(database: Path) -> bool:
    """Whether a transaction can be begun within a second."""
    with closing(sqlite3.connect(database, timeout=1, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True


@asynccontextmanager
async def stopped_program(directory: Path) -> AsyncIterator[tuple[Namespace, dlog.LogWriter, Program, int]]:
    """This process hosts the directory and writes "feed"; another one follows it and is stopped."""
    uri = directory.as_uri()
    async with dlog.open_namespace(uri) as namespace, namespace.open_writer("feed", create=True) as feed:
        with program(uri) as other:
            await feed.append(b"0")
            await feed.flush()
            other.say("a")
            await other.hear("read 0", "wrote a")
            (session,) = (line.split()[1] for line in other.lines if line.startswith("session"))
            await stop_between_transactions(other.process, directory)
            yield namespace, feed, other, int(session)
            other.process.stdin.close()  # type: ignore[union-attr]
            with trio.fail_after(60):
                await trio.to_thread.run_sync(other.process.wait)
            assert other.process.returncode == 0


@pytest.mark.cluster
async def test_a_stopped_process_keeps_its_lock_and_goes_on(tmp_path: Path) -> None:
    async with stopped_program(tmp_path) as (namespace, feed, other, _):
        with pytest.raises(dlog.LogLockedError, match=str(other.process.pid)):
            async with namespace.open_writer("log", lock_timeout_s=2):
                pass
        await feed.append(b"1")
        await feed.flush()
        other.process.send_signal(SIGCONT)
        other.say("b")
        await other.hear("read 1", "wrote b")
    assert "reopened" not in other.lines


@pytest.mark.cluster
async def test_a_stopped_process_whose_session_was_ended_goes_on_behind_its_successor(tmp_path: Path) -> None:
    async with stopped_program(tmp_path) as (namespace, feed, other, session):
        remove_lock_file(tmp_path, session)
        async with namespace.open_writer("log") as successor:
            await successor.append(b"successor")
        await feed.append(b"1")
        await feed.flush()
        other.process.send_signal(SIGCONT)
        other.say("refused")
        other.say("b")
        await other.hear("read 1", "refused", "reopened", "wrote b")
        await feed.append(b"2")
        await feed.flush()
        await other.hear("read 2")
        with trio.fail_after(60):
            while (await payloads(namespace))[-1:] != [b"b"]:
                async with namespace.open_reader("log") as reader:  # visible once the process has flushed
                    while (await anext(reader)).payload != b"b":
                        pass
        assert await payloads(namespace) == [b"a", b"successor", b"b"]
    assert [line for line in other.lines if line.startswith("read")] == ["read 0", "read 1", "read 2"]
