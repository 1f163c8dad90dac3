"""A forked child gets an error that names the rule, not a wait without end; the parent goes on."""

# covers: ledger/runtime/tasks/forks.py

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

BLOCKING = """
import os, sys, threading, dlog, dlog.blocking
from dlog.errors import NamespaceClosedError
namespace = dlog.blocking.open_namespace(sys.argv[1])
with namespace, namespace.open_writer("orders", create=True) as log:
    log.append(b"before the fork")
    log.flush()
    reader = namespace.open_reader("orders")
    forked = threading.Event()
    namespace._loop.call_soon(forked.wait)
    for _ in range(100):
        log.submit(b"in flight")  # the loop, which waits, has not taken these before the fork
    if (child := os.fork()) == 0:
        calls = {
            "append": lambda: log.append(b"by the child"),
            "append_many": lambda: log.append_many([b"by the child"]),
            "submit": lambda: log.submit(b"by the child"),
            "flush": log.flush,
            "list_logs": namespace.list_logs,
            "read": lambda: next(reader),
        }
        for name, call in calls.items():
            try:
                print(name, call())
            except NamespaceClosedError as exc:
                print(name, exc)
        namespace.close()
        with dlog.blocking.open_namespace(sys.argv[1]) as opened_after:
            assert opened_after.list_logs() == ["orders"]
        sys.stdout.flush()
        sys.exit(0)
    forked.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    log.append(b"by the parent")
    log.flush()
    print("parent", namespace.describe_log("orders").record_count)
"""

LEDGERS = """
import os, sys, threading, ledger.blocking
from ledger.errors import ClientClosedError
with (
    ledger.blocking.open_client(sys.argv[1]) as client,
    client.create(ensemble_size=1, write_quorum=1, ack_quorum=1) as handle,
):
    forked = threading.Event()
    client._loop.call_soon(forked.wait)
    for _ in range(100):
        handle.submit(b"in flight")  # the loop, which waits, has not taken these before the fork
    if (child := os.fork()) == 0:
        calls = {
            "append": lambda: handle.append(b"by the child"),
            "append_many": lambda: handle.append_many([b"by the child"]),
            "submit": lambda: handle.submit(b"by the child"),
        }
        for name, call in calls.items():
            try:
                print(name, call())
            except ClientClosedError as exc:
                print(name, exc)
        sys.stdout.flush()
        os._exit(0)
    forked.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("parent", handle.append(b"by the parent") + 1)
"""

ASYNC = """
import os, sys, trio, dlog
from dlog.errors import NamespaceClosedError, WriterClosedError
async def main():
    async with (
        dlog.open_namespace(sys.argv[1]) as namespace,
        namespace.open_writer("orders", create=True) as log,
    ):
        await log.append(b"before the fork")
        await log.flush()
        async with namespace.open_reader("orders") as reader:
            await anext(reader)
            if (child := os.fork()) == 0:
                calls = {
                    "append": lambda: log.append(b"by the child"),
                    "append_many": lambda: log.append_many([b"by the child"]),
                    "list_logs": namespace.list_logs,
                    "read": lambda: anext(reader),
                }
                for name, call in calls.items():
                    try:
                        print(name, await call())
                    except (NamespaceClosedError, WriterClosedError) as exc:
                        print(name, exc)
                sys.stdout.flush()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        await log.append(b"by the parent")
        await log.flush()
        print("parent", (await namespace.describe_log("orders")).record_count)
trio.run(main)
"""

AIO = (
    ASYNC.replace("import os, sys, trio, dlog", "import asyncio, os, sys, dlog.aio")
    .replace("dlog.open_namespace", "dlog.aio.open_namespace")
    .replace("trio.run(main)", "asyncio.run(main())")
)

SHARDED = """
import asyncio, os, sys, trio, dlog, dlog.aio, dlog.blocking, dlog.shards
from dlog.errors import NamespaceClosedError
with dlog.blocking.open_namespace(sys.argv[1]) as namespace:
    dlog.blocking.create_sharded_log(namespace, "orders", 2)
CALLS = {
    "read a batch": lambda reader: reader.read_batch(10),
    "read a batch within a limit": lambda reader: reader.read_batch(10, wait_s=0.01),
    "read a batch or a gap": lambda reader: reader.read_batch_or_gap(10, wait_s=0.01),
}
async def main(face, functions):
    async with face.open_namespace(sys.argv[1]) as namespace:
        async with functions.open_sharded_reader(namespace, "orders", gaps=True) as reader:
            if (child := os.fork()) == 0:
                for name, call in CALLS.items():
                    try:
                        print(name, await call(reader))
                    except NamespaceClosedError as exc:
                        print(name, exc)
                sys.stdout.flush()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            print("parent", (await reader.read_batch(10, wait_s=0))[0])
if sys.argv[2] == "trio":
    trio.run(main, dlog, dlog.shards)
elif sys.argv[2] == "asyncio":
    asyncio.run(main(dlog.aio, dlog.aio))
else:
    with dlog.blocking.open_namespace(sys.argv[1]) as namespace:
        with dlog.blocking.open_sharded_reader(namespace, "orders", gaps=True) as reader:
            if (child := os.fork()) == 0:
                for name, call in CALLS.items():
                    try:
                        print(name, call(reader))
                    except NamespaceClosedError as exc:
                        print(name, exc)
                sys.stdout.flush()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            print("parent", reader.read_batch(10, wait_s=0)[0])
"""

DROPPED = """
import gc, os, sys
from pathlib import Path
from bookie.disk.real_disk import RealDisk
index = RealDisk().open_key_values(Path(sys.argv[1].removeprefix("file://")))
index.write([(b"key", b"in the parent's buffer")])
if (child := os.fork()) == 0:
    index.close()
    del index
    gc.collect()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
index.sync()
print(index.get(b"key").decode())
index.close()
"""


def printed_by(program: str, path: Path, *arguments: str) -> str:
    with subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, f"file://{path}", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            printed, _ = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # the child as well
    assert process.returncode == 0
    return printed


@pytest.mark.slow
def test_a_child_that_drops_the_index_ends_and_leaves_the_files_to_its_parent(tmp_path: Path) -> None:
    assert printed_by(DROPPED, tmp_path / "index") == "in the parent's buffer\n"


@pytest.mark.parametrize(
    ("program", "calls", "count"), [(BLOCKING, 6, 102), (LEDGERS, 3, 101), (ASYNC, 4, 2), (AIO, 4, 2)]
)
@pytest.mark.slow
def test_a_forked_child_gets_the_rule_and_the_parent_goes_on(
    tmp_path: Path, program: str, calls: int, count: int
) -> None:
    printed = printed_by(program, tmp_path)
    *by_child, by_parent = printed.splitlines()
    assert len(by_child) == calls
    assert [line for line in by_child if "a namespace must be opened after the fork" not in line] == []
    assert by_parent == f"parent {count}"


@pytest.mark.slow
@pytest.mark.parametrize("face", ["trio", "asyncio", "blocking"])
def test_so_does_one_that_reads_a_sharded_log_also_with_a_limit(tmp_path: Path, face: str) -> None:
    *by_child, by_parent = printed_by(SHARDED, tmp_path, face).splitlines()
    assert len(by_child) == 3
    assert [line for line in by_child if "a namespace must be opened after the fork" not in line] == []
    assert by_parent == "parent -1"  # no shard
