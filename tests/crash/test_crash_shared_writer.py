"""Many real processes with one log: the owner is killed again and again, and every record is stored once.

``DLOG_SHARED_KILLS`` sets the number of kills in the first test.
"""

# covers: dlog/forwarding/shared_shell.py
# covers: dlog/forwarding/owner.py

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
import trio

from dlog.cluster.ports import free_ports
from tests.crash.shared_crowd import open_crowd, stored
from tests.places import ROOT

pytestmark = pytest.mark.slow
TEST_TIMEOUT_S = 240
PROGRAMS = 8
KILLS = int(os.environ.get("DLOG_SHARED_KILLS", "8"))
KILL_S = 10  # that one kill and what follows may take


async def test_records_are_stored_once_and_in_order_although_the_owner_is_killed_many_times(
    tmp_path: Path,
) -> None:
    rng = random.Random(7)
    with trio.fail_after(TEST_TIMEOUT_S + KILL_S * KILLS):
        async with open_crowd(f"file://{tmp_path}/ns") as crowd:
            for _ in range(PROGRAMS):
                await crowd.start()
            for _ in range(KILLS):
                await crowd.more_from(crowd.living, rng.randint(1, 40))
                await crowd.kill(crowd.owner)
                await crowd.start()
            await crowd.more_from(crowd.living, 1)
            await crowd.check()


def children_of(pid: int) -> list[int]:
    """The processes that this process has started, oldest first."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(each) for task in tasks for each in (task / "children").read_text().split())


def kill_one_worker(server_pid: int, rng: random.Random) -> None:
    """Kill a process that the server started, but not the helper of Python's ``multiprocessing``."""
    with suppress(FileNotFoundError, ProcessLookupError):  # one that ended just now
        pids = children_of(server_pid)
        workers = [
            pid for pid in pids if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(rng.choice(workers), signal.SIGKILL)


@asynccontextmanager
async def served(
    command: list[str], uri: str, directory: Path, environment: dict[str, str] | None = None
) -> AsyncIterator[trio.Process]:
    """A server with several workers; it is asked to end, and has to."""
    with (directory / "server.log").open("wb") as log:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", *command],
            env=environment or {"PATH": "/usr/bin:/bin", "DLOG_URI": uri, "PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            cwd=ROOT,
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def was_answered(port: int, order: str) -> bool:
    """Send an order by a connection of its own, since the workers share those; True for a 200."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        lines = ["POST /orders HTTP/1.1", "Host: shop", f"Content-Length: {len(order)}", "Connection: close"]
        await stream.send_all("\r\n".join([*lines, "", order]).encode())
        reply = b"".join([chunk async for chunk in stream])
    return reply.startswith(b"HTTP/1.1 200 ") and b'"position"' in reply


@pytest.mark.parametrize(
    "command",
    [
        ["uvicorn", "--workers", "4", "--app-dir", "examples", "fastapi_service:app", "--port", "{port}"],
        ["gunicorn", "--workers", "4", "--threads", "4", "--chdir", "examples", "--bind", "127.0.0.1:{port}",
         "flask_service:app"],
    ],
    ids=["uvicorn", "gunicorn"],
)  # fmt: skip
async def test_every_answered_request_is_stored_once_although_workers_are_killed(
    tmp_path: Path, command: list[str]
) -> None:
    (port,) = free_ports(1, random.Random(), host="127.0.0.1")
    uri = f"file://{tmp_path}/ns"
    answered: list[str] = []
    rng = random.Random(11)
    with trio.fail_after(TEST_TIMEOUT_S):
        filled = [each.format(port=port) for each in command]
        async with served(filled, uri, tmp_path) as server, trio.open_nursery() as nursery:

            async def post(client: int) -> None:
                for number in count():
                    order = f"{client}/{number}"
                    try:
                        if await was_answered(port, order):
                            answered.append(order)
                    except OSError:
                        await trio.sleep(0.05)  # the server begins
                    except trio.BrokenResourceError:
                        pass  # the worker was killed

            async def more(records: int) -> None:
                enough = len(answered) + records
                while len(answered) < enough:  # noqa: ASYNC110
                    await trio.sleep(0.02)

            for client in range(6):
                nursery.start_soon(post, client)
            await more(30)
            for _ in range(4):
                kill_one_worker(server.pid, rng)
                await more(30)
            nursery.cancel_scope.cancel()
        counts = Counter(payload.decode() for payload in await stored(uri))
    assert [order for order, stored_count in counts.items() if stored_count > 1] == []
    assert set(answered) - set(counts) == set()


CELERY_APP = """
import json
import pathlib
import sys
import celery.exceptions
import celery_tasks

app = celery_tasks.app
box = pathlib.Path(__file__).parent
(box / "queue").mkdir(exist_ok=True)
(box / "results").mkdir(exist_ok=True)
app.conf.broker_transport_options = {
    "data_folder_in": str(box / "queue"), "data_folder_out": str(box / "queue"),
    "control_folder": str(box / "control"),
}
app.conf.result_backend = f"file://{box / 'results'}"
app.conf.task_reject_on_worker_lost = True
if __name__ == "__main__":
    sent = {order: celery_tasks.store.delay(order) for order in map(str, range(int(sys.argv[1])))}
    done = {}
    while sent:
        order, result = sent.popitem()
        try:
            done[order] = result.get(timeout=20)
        except celery.exceptions.TimeoutError:  # the pool loses a task whose process had not begun it
            sent[order] = celery_tasks.store.delay(order)
    print(json.dumps(done))
"""


KILLING = """
import os
import random
import signal
import threading
import celery.signals

KILLED = ("15", "30", "45", "60")  # the process that stores one of these for the first time is killed
dying = threading.Event()

@celery.signals.task_prerun.connect
def be_killed_soon(args, **_):
    mark = box / f"killed-{args[0]}"
    if args[0] in KILLED and not mark.exists():
        mark.touch()
        dying.set()
        delay_s = random.Random(int(args[0])).uniform(0, 0.01)
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

@celery.signals.task_postrun.connect
def die(**_):
    if dying.is_set():  # never between two tasks: there a process may hold the lock of the pool's queue
        threading.Event().wait()
"""


async def test_each_task_of_a_pool_of_celery_is_stored_although_its_processes_are_killed(
    tmp_path: Path,
) -> None:
    uri, orders = f"file://{tmp_path}/ns", 80
    (tmp_path / "shop_tasks.py").write_text(CELERY_APP + KILLING)
    environment = {
        "PATH": "/usr/bin:/bin",
        "DLOG_URI": uri,
        "CELERY_BROKER": "filesystem://",
        "PYTHONPATH": f"{tmp_path}:{ROOT / 'examples'}:{ROOT}",
    }
    worker = ["celery", "--app", "shop_tasks", "worker", "--concurrency", "3", "--loglevel", "INFO"]
    with trio.fail_after(TEST_TIMEOUT_S):
        async with served(worker, uri, tmp_path, environment):
            done = await trio.run_process(
                [sys.executable, str(tmp_path / "shop_tasks.py"), str(orders)],
                env=environment,
                capture_stdout=True,
            )
        counts = Counter(json.loads(payload)["order"] for payload in await stored(uri))
    assert len([name for name in os.listdir(tmp_path) if name.startswith("killed-")]) == 4
    positions = json.loads(done.stdout)
    assert set(positions) == set(counts) == set(map(str, range(orders)))
    # A task that was delivered again after its process died may be there twice, as the example says.
    assert sum(counts.values()) < 2 * orders
