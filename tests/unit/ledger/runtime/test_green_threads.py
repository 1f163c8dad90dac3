"""gevent and eventlet, the real libraries: what they replace is refused at once, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ledger.errors import ClientClosedError
from ledger.runtime.tasks.loop_thread import LoopThread
from tests.places import ROOT

LIMIT_S = 120  # a refusal takes no time; an event loop in greenlets would stop for ever
PATCHED = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
OPENED = {
    "dlog.blocking": "import dlog.blocking\nwith dlog.blocking.open_namespace(uri): print('opened')",
    "dlog.aio": (
        "import asyncio, dlog.aio\n"
        "async def main():\n"
        "    async with dlog.aio.open_namespace(uri): print('opened')\n"
        "asyncio.run(main())"
    ),
    "ledger.blocking": "import ledger.blocking\nwith ledger.blocking.open_client(uri): print('opened')",
}


def run(directory: Path, *lines: str, more: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    program = directory / "program.py"
    program.write_text("\n".join(lines))
    return subprocess.run(
        [sys.executable, *(more or (str(program),))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("library", "module", "question"),
    [
        ("gevent", "gevent.monkey", "is_module_patched"),
        ("eventlet", "eventlet.patcher", "is_monkey_patched"),
    ],
)
def test_greenlets_in_place_of_threads_are_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, library: str, module: str, question: str
) -> None:
    patched = {"select"}
    fake = SimpleNamespace(**{question: lambda name: name in patched})
    monkeypatch.setitem(sys.modules, module, fake)
    with pytest.raises(RuntimeError, match=rf"{library} has replaced .*--worker-class gthread"):
        LoopThread("test", ClientClosedError, "closed")
    patched.clear()  # it is imported, and has patched nothing
    LoopThread("test", ClientClosedError, "closed").stop()


@pytest.mark.slow
@pytest.mark.parametrize("library", PATCHED)
@pytest.mark.parametrize("face", OPENED)
def test_a_patched_program_that_opens_something_ends_with_what_to_do(
    tmp_path: Path, library: str, face: str
) -> None:
    ended = run(tmp_path, PATCHED[library], f"uri = 'file://{tmp_path}/shop'", OPENED[face])
    assert f"RuntimeError: {library} has replaced Python's threads" in ended.stderr
    assert "--worker-class gthread" in ended.stderr
    assert (ended.returncode, ended.stdout) == (1, "")


# All that a program may import first, and that an earlier import does not bring.
IMPORTED = (
    *("dlog", "dlog.aio", "dlog.blocking", "dlog.bulk", "dlog.cluster", "dlog.explain", "dlog.groups"),
    *("dlog.page", "dlog.shards", "dlog.testing", "dlog.typed", "dlog.wal", "ledger", "ledger.blocking"),
    *("bookie.main", "spark_integration"),
)


@pytest.mark.slow
def test_under_eventlet_each_import_of_dlog_says_what_to_do(tmp_path: Path) -> None:
    """gevent is refused at the opening instead: values can be used there."""
    ended = run(
        tmp_path,
        "import importlib, sys, warnings; warnings.simplefilter('ignore')",
        PATCHED["eventlet"],
        f"for name in {IMPORTED}:",
        "    try:",
        "        importlib.import_module(name)",
        "    except RuntimeError as exc:",
        "        print(name, str(exc).startswith('eventlet has replaced'), 'gthread' in str(exc))",
        "    for each in list(sys.modules):  # the next one is the first import, too",
        "        if each.partition('.')[0] in ('dlog', 'ledger', 'bookie', 'namespace'):",
        "            del sys.modules[each]",
    )
    said = "".join(f"{name} True True\n" for name in IMPORTED)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")


@pytest.mark.slow
@pytest.mark.parametrize("library", PATCHED)
def test_a_library_that_patched_nothing_is_no_hindrance(tmp_path: Path, library: str) -> None:
    module = {"gevent": "gevent.monkey", "eventlet": "eventlet.patcher"}[library]
    ended = run(
        tmp_path,
        "import warnings; warnings.simplefilter('ignore')",  # eventlet's, that it is deprecated
        f"import {module}",
        f"uri = 'file://{tmp_path}/shop'",
        OPENED["dlog.blocking"],
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "opened\n", "")


@pytest.mark.slow
def test_values_can_be_used_in_a_worker_of_gevent(tmp_path: Path) -> None:
    ended = run(tmp_path, PATCHED["gevent"], "import dlog", "print(dlog.DLSN.parse('7:42:0'))")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "7:42:0\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["gevent", "sync"])
def test_gunicorn_says_what_to_do_when_its_worker_has_greenlets(tmp_path: Path, worker: str) -> None:
    """The worker opens its namespace when it loads the application; gunicorn ends if that fails."""
    ended = run(
        tmp_path,
        "import os, sys, dlog.blocking",
        f"dlog.blocking.open_namespace('file://{tmp_path}/shop').close()",
        "print('opened')",
        "sys.stdout.flush()",
        "os._exit(3)  # as a worker that fails to boot: gunicorn ends",
        more=(
            *("-m", "gunicorn", "--bind", f"unix:{tmp_path}/socket", "--workers", "1"),
            *("--worker-class", worker, "program:application"),
        ),
    )
    refused = "RuntimeError: gevent has replaced Python's threads" in ended.stderr
    assert (ended.returncode, ended.stdout, refused) == (
        (3, "", True) if worker == "gevent" else (3, "opened\n", False)
    ), ended.stderr
