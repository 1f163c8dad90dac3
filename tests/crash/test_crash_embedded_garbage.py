"""SIGKILL for a process that collects garbage: the directory stays usable, whole, and loses its garbage."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import dlog
from ledger.deploy.embedded import open_embedded_stack

pytestmark = pytest.mark.slow
PAYLOAD_BYTES = 100_000

WRITE_DELETE_COLLECT = """
import os, sys, trio, dlog
from pathlib import Path
from dlog.connect import prepare_embedded_namespace
from ledger.deploy.embedded import open_embedded_stack
from dlog.context import NamespaceContext
from dlog.namespace_handle import Namespace
async def main():
    config = dlog.NamespaceConfig().for_scheme("file")
    async with open_embedded_stack(Path(sys.argv[1])) as stack:
        path = await prepare_embedded_namespace(stack.store)
        context = NamespaceContext("file:", stack.store, stack.client, path, config, client_id="victim")
        namespace = Namespace(context)
        for name in await namespace.list_logs():
            if name != "kept":
                await namespace.delete_log(name, lock_timeout_s=60)
        number = int(sys.argv[2])
        while True:
            async with namespace.open_writer("kept", create=True) as writer:
                await writer.append(b"%d" % number)
            number += 1
            print(number, flush=True)
            async with namespace.open_writer(f"gone-{number}", create=True) as writer:
                await writer.append_many([os.urandom(100_000) for _ in range(5)])
            await namespace.delete_log(f"gone-{number}")
            await stack.hosting.garbage.collect()
trio.run(main)
"""


@contextmanager
def running(*args: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_DELETE_COLLECT, *args], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


async def test_a_process_killed_during_garbage_collection_loses_no_record(
    tmp_path: Path,
) -> None:
    rng = random.Random(4)
    acknowledged = 0
    for _ in range(4):
        with running(str(tmp_path), str(acknowledged)) as process:
            assert process.stdout is not None
            with trio.fail_after(120):
                for _ in range(rng.randint(1, 6)):
                    acknowledged = int(await trio.to_thread.run_sync(process.stdout.readline))
                # The kill hits a random moment of deletion or collection.
                await trio.sleep(rng.uniform(0, 0.1))
            process.kill()
            for line in process.stdout:
                acknowledged = int(line)
        async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
            async with namespace.open_writer("kept"):
                pass  # opening the writer recovers the last segment
            async with namespace.open_reader("kept", follow=False) as reader:
                numbers = [int(record.payload) async for record in reader]
            assert numbers[:acknowledged] == list(range(acknowledged))
            acknowledged = len(numbers)
            for name in await namespace.list_logs():
                if name != "kept":
                    await namespace.delete_log(name, lock_timeout_s=60)
    async with open_embedded_stack(tmp_path) as stack:
        assert stack.hosting.garbage is not None, "the bookie and the metadata still belong together"
        await stack.hosting.garbage.collect()
        logs = (tmp_path / "bookie" / "current").glob("*.log")
        assert sum(each.stat().st_size for each in logs) < 5 * PAYLOAD_BYTES
