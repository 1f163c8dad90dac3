"""A process on a directory that a test moves, replaces or removes: it writes, reads, purges and compacts.

``python directory_victim.py DIRECTORY LOG`` prints ``ack N`` when the log's record N is acknowledged,
``compacted N`` after N entry logs were compacted, if it hosts the bookie, and ``told TASK`` when a task's
call has raised ``NamespaceLostError``. It ends when all were told.

Inside: the process, and its handle for tests.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from subprocess import PIPE

import trio

import dlog
from bookie.embedded import garbage, host
from bookie.errors import BookieServerError
from dlog.connect import prepare_embedded_namespace
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
from ledger.config import ClientConfig
from ledger.deploy.embedded import Hosting, open_embedded_stack
from ledger.metadata_store.errors import MetadataError

KEPT_BYTES = 500
GONE_BYTES = 40_000


def payload_of(log: str, number: int) -> bytes:
    """The payload of the log's record ``number``."""
    return f"{log} {number} ".encode().ljust(KEPT_BYTES, b".")


async def append(namespace: Namespace, log: str) -> None:
    """Append records, and print the acknowledged numbers."""
    async with namespace.open_writer(log, create=True) as writer:
        number = 0
        while True:
            await writer.append(payload_of(log, number))
            number += 1
            print("ack", number, flush=True)


async def follow(namespace: Namespace, log: str) -> None:
    """Read what is appended."""
    with suppress(dlog.LogExistsError):
        await namespace.create_log(log)
    async with namespace.open_reader(log) as reader:
        async for record in reader:
            assert record.payload.startswith(f"{log} ".encode())


async def purge(namespace: Namespace, log: str) -> None:
    """Write logs, truncate them and delete them."""
    number = 0
    while True:
        gone = f"{log}-gone-{number}"
        async with namespace.open_writer(gone, create=True) as writer:
            dlsns = await writer.append_many([bytes(GONE_BYTES)] * 5)
        await namespace.truncate_log(gone, dlsns[-1])
        await namespace.delete_log(gone)
        number += 1


async def compact(hosting: Hosting) -> None:
    """Collect garbage without a pause while the bookie runs here."""
    printed = 0
    while True:
        await trio.sleep(0.01)
        hosted = hosting._hosted
        if not isinstance(hosted, host.HostedBookie) or hosted.garbage is None:
            continue
        storage = hosted.bookie.storage
        with suppress(BookieServerError, MetadataError, OSError):
            await storage.flush()
            await hosted.garbage.collect()
        if (done := sum(one.stats.compacted_logs for one in storage.collectors)) > printed:
            printed = done
            print("compacted", done, flush=True)


async def run_until_told(
    task: Callable[[Namespace, str], Awaitable[None]], namespace: Namespace, log: str
) -> None:
    """Repeat the task at every other error: an attached process waits for a host."""
    while True:
        try:
            await task(namespace, log)
        except dlog.NamespaceLostError:
            print("told", task.__name__, flush=True)
            return
        except (dlog.WriteError, dlog.LogUnavailableError) as exc:  # the next call succeeds, or says why
            print("failed", repr(exc), file=sys.stderr)


async def run(directory: Path, log: str) -> None:
    """Do everything at once."""
    # So that logs are complete, and compacted, after a moment.
    vars(garbage)["ENTRY_LOG_BYTES_MAX"] = 256 << 10
    impatient = ClientConfig(unavailable_timeout_s=0.2)  # what is in flight has an outcome soon
    async with open_embedded_stack(directory, impatient) as stack:
        path = await prepare_embedded_namespace(stack.store)
        config = dlog.NamespaceConfig().for_scheme("file")
        namespace = Namespace(
            NamespaceContext("file:", stack.store, stack.client, path, config, client_id=f"victim {log}")
        )
        async with trio.open_nursery() as background:
            background.start_soon(compact, stack.hosting)
            async with trio.open_nursery() as tasks:
                for task in (append, follow, purge):
                    tasks.start_soon(run_until_told, task, namespace, log)
            background.cancel_scope.cancel()


class Victim:
    """A test's handle on the process."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.acknowledged = 0
        self.compacted = 0
        self.told: set[str] = set()
        self._rest = b""

    async def _receive(self) -> bool:
        assert self.process.stdout is not None
        chunk = await self.process.stdout.receive_some()
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            word, value = line.decode().split()
            if word == "ack":
                self.acknowledged = int(value)
            elif word == "compacted":
                self.compacted = int(value)
            else:
                self.told.add(value)
        return bool(chunk)

    async def wait(self, acknowledged: int, compacted: int = 0) -> None:
        """Wait until it has done so much; fail if it ends before."""
        while self.acknowledged < acknowledged or self.compacted < compacted:
            goes_on = await self._receive()
            assert goes_on, "the process ended by itself; its error is printed above"

    async def wait_end(self) -> int:
        """Wait until it has ended; its exit code."""
        while await self._receive():
            pass
        return await self.process.wait()

    async def kill(self) -> None:
        """SIGKILL; what it printed before counts."""
        self.process.kill()
        await self.wait_end()


@asynccontextmanager
async def open_victim(directory: Path, log: str) -> AsyncIterator[Victim]:
    """Start the process; kill it at the end of the block."""
    process = await trio.lowlevel.open_process([sys.executable, __file__, str(directory), log], stdout=PIPE)
    try:
        yield Victim(process)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            assert process.stdout is not None
            await process.stdout.aclose()


if __name__ == "__main__":
    trio.run(run, Path(sys.argv[1]), sys.argv[2])
