"""The programs that a newcomer writes first, from the built wheel, outside of the checkout."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import dlog.blocking
from tests.crash.test_crash_shared_writer import CELERY_APP
from tests.edge.wheel import build_wheel
from tests.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("wheel")]  # built once
LIMIT_S = 240
ORDERS = 40


@pytest.fixture(scope="module")
def bin_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` of a new virtual environment with the wheel; other packages are those of the tests."""
    wheel = build_wheel(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel"))
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=LIMIT_S)
    python = home / "bin" / "python"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(python)),
            "install",
            "--quiet",
            "--no-deps",
            str(wheel),
        ],
        check=True,
        timeout=LIMIT_S,
        cwd=home,
        env=variables(home),
    )
    # A path in a .pth file does not bring the .pth files there, so not the editable checkout either.
    site = sysconfig.get_path("purelib", vars={"base": str(home)})
    (Path(site) / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    packages = ", ".join(("bookie", "dlog", "ledger", "namespace", "spark_integration"))
    found = run(
        home / "bin",
        home,
        "python",
        "-c",
        f"import {packages}\nfor each in ({packages}): print(each.__file__)",
    )
    assert len(found.splitlines()) == 5
    assert all(Path(line).is_relative_to(home) for line in found.splitlines())
    return home / "bin"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with copies of the examples, and nothing else of the checkout."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def variables(directory: Path) -> dict[str, str]:
    """The environment of a user, without what leads to the checkout."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {**kept, "DLOG_URI": (directory / "log").as_uri(), "TMPDIR": str(directory)}


def run(bin_of: Path, directory: Path, *command: str, text: str = "", **more: str) -> str:
    """Run a program to its end; return its output. It says nothing on stderr."""
    done = subprocess.run(
        [str(bin_of / command[0]), *command[1:]],
        cwd=directory,
        env={**variables(directory), **more},
        input=text,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@contextmanager
def served(bin_of: Path, directory: Path, *command: str, **more: str) -> Iterator[httpx.Client]:
    """Run a server on a socket that is listened to before it starts; end it as an operator does."""
    with socket.create_server(("127.0.0.1", 0)) as listening, (directory / "server.log").open("w+") as log:
        number = str(listening.fileno())
        with subprocess.Popen(
            [str(bin_of / "python"), "-m", *(each.replace("FD", number) for each in command)],
            cwd=directory,
            env={**variables(directory), **more},
            stdout=log,
            stderr=log,
            pass_fds=[listening.fileno()],
        ) as server:
            try:
                url = f"http://127.0.0.1:{listening.getsockname()[1]}"
                with httpx.Client(base_url=url, timeout=LIMIT_S, trust_env=False) as client:
                    yield client
                server.send_signal(signal.SIGTERM)
                assert server.wait(LIMIT_S) in (0, -signal.SIGTERM)
            finally:
                server.kill()
        log.seek(0)
        assert "Traceback" not in log.read()


def stored(directory: Path, name: str = "orders") -> list[bytes]:
    """The records of a log, read once a next writer has it."""
    with dlog.blocking.open_namespace((directory / "log").as_uri()) as namespace:
        namespace.open_writer(name, lock_timeout_s=0).close()
        with namespace.open_reader(name, follow=False) as reader:
            return [record.payload for record in reader]


def post_at_once(client: httpx.Client) -> None:
    """Send orders from several threads; each is answered with its position."""
    with ThreadPoolExecutor(8) as threads:
        replies = list(
            threads.map(lambda number: client.post("/orders", content=b"%d" % number), range(ORDERS))
        )
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.json()["position"] for reply in replies}) == ORDERS
    assert sorted(client.get("/orders").json(), key=int) == [str(number) for number in range(ORDERS)]
    assert client.get("/health").json()["ok"] is True


def test_a_script_writes_the_lines_of_its_input(bin_of: Path, place: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(500))
    printed = run(bin_of, place, "python", "examples/script.py", "log", text=text)
    assert printed.splitlines()[-1] == "500 lines in the log"
    assert stored(place, "lines") == [line.encode() for line in text.splitlines()]


def test_a_service_of_fastapi_under_uvicorn_stores_each_answered_order(bin_of: Path, place: Path) -> None:
    command = ["uvicorn", "--fd", "FD", "--app-dir", "examples", "fastapi_service:app"]
    with served(bin_of, place, *command) as client:
        post_at_once(client)
    assert sorted(map(int, stored(place))) == list(range(ORDERS))


def test_threads_of_a_service_of_flask_share_one_writer(bin_of: Path, place: Path) -> None:
    command = ["gunicorn", "--threads", "8", "--bind", "fd://FD", "--chdir", "examples", "flask_service:app"]
    with served(bin_of, place, *command) as client:
        post_at_once(client)
    assert sorted(map(int, stored(place))) == list(range(ORDERS))


def test_a_worker_of_celery_stores_the_orders_of_its_tasks(bin_of: Path, place: Path) -> None:
    (place / "shop_tasks.py").write_text(CELERY_APP)
    more = {"CELERY_BROKER": "filesystem://", "PYTHONPATH": f"{place}:{place / 'examples'}"}
    command = ["celery", "--app", "shop_tasks", "worker", "--pool", "threads", "--concurrency", "4"]
    with served(bin_of, place, *command, **more):
        printed = run(bin_of, place, "python", "shop_tasks.py", str(ORDERS), **more)
    positions = json.loads(printed)
    assert len(set(positions.values())) == ORDERS
    assert sorted(int(json.loads(payload)["order"]) for payload in stored(place)) == list(range(ORDERS))


RUN_NOTEBOOK = """
import sys
import nbclient, nbformat
from traitlets.config import Config
notebook = nbformat.read(sys.argv[1], as_version=4)
notebook.cells.append(nbformat.v4.new_code_cell("print(dlog.__file__)"))
# By sockets in this directory, since the kernel warns of TCP.
config = Config(AsyncKernelManager={"transport": "ipc", "ip": "kernel"})
nbclient.NotebookClient(notebook, config=config, timeout=240).execute()
for cell in notebook.cells:
    for output in cell.get("outputs", []):
        print(output.get("text", output), end="")
"""


def test_a_notebook_writes_and_reads_in_a_kernel_of_jupyter(bin_of: Path, place: Path) -> None:
    path = place / "examples" / "orders.ipynb"
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert all(cell.get("outputs", []) == [] for cell in cells), "clear the outputs before a commit"
    printed = run(bin_of, place, "python", "-c", RUN_NOTEBOOK, str(path))
    assert "500 orders, 174750 cents" in printed
    assert "asyncio sees 500 orders in order: True" in printed
    assert Path(printed.splitlines()[-1]).is_relative_to(bin_of.parent)
    (work,) = place.glob("orders-*")
    assert [json.loads(payload)["id"] for payload in stored(work)] == list(range(500))


def test_lines_in_a_pipe_are_written_and_read_by_the_command(bin_of: Path, place: Path) -> None:
    uri = (place / "log").as_uri()
    pipe = "printf 'one\\ntwo\\nthree\\n' | dlog write orders --create && dlog read orders | tail -n 2"
    done = subprocess.run(
        ["sh", "-c", pipe.replace("orders", f"orders --uri {uri}")],
        env={**variables(place), "PATH": f"{bin_of}:/usr/bin:/bin"},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (0, "two\nthree\n")
    assert done.stderr == "orders: 3 records, 11 bytes, durable at 1:0:0 to 1:0:2\n"
    assert stored(place) == [b"one", b"two", b"three"]
