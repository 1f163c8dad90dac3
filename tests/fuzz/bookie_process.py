"""A whole bookie in a process of its own: ``python -m tests.fuzz.bookie_process MODE DIRECTORY``.

It has both ports, which it writes to its standard output. Its metadata are in its memory, and it does not ask
them about new ledgers. SIGTERM ends it; so does an error, as in ``dlog bookie run``.

Inside: the program, and ``open_bookie_process``, which starts it and ends it.
Not inside: what is sent to it (``process_sweep``).
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from bookie.config.admin_config import AdminConfig
from bookie.endings import exit_code_of
from bookie.main import run_bookie
from bookie.requests.new_ledgers import NewLedgersConfig
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.runtime.tasks.failure_domain import contained_failures
from tests.fuzz.frame_talk import Mode
from tests.fuzz.frame_world import MACHINE, OTHER_BYTES, sweep_config
from tests.places import ROOT

TOKEN = "0123456789abcdef"
STOP_S = 60.0  # a guard against a hang, on any machine


@attrs.frozen
class BookieProcess:
    """A running one."""

    process: subprocess.Popen[bytes]
    address: tuple[str, int]
    http_port: int
    directory: Path

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def memory_peak_bytes(self) -> int:
        """Of its resident memory since it began."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

    @property
    def errors(self) -> list[str]:
        """What it has logged as an error; not that two requests of a sweep add the same entry."""
        text = (self.directory / "log").read_text(errors="replace")
        lines = [line for line in text.splitlines() if OTHER_BYTES not in line]
        return [line for line in lines if line.startswith(("ERROR", "CRITICAL", "Traceback"))]


def _start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, cwd=ROOT)


@asynccontextmanager
async def open_bookie_process(mode: Mode, directory: Path) -> AsyncIterator[BookieProcess]:
    """Start one; at the end, let it stop by itself, and raise ``AssertionError`` if it cannot."""
    command = [sys.executable, "-m", "tests.fuzz.bookie_process", mode.name, str(directory)]
    process = _start(command, directory / "log")
    try:
        assert process.stdout is not None  # it is a pipe
        ports = await trio.to_thread.run_sync(process.stdout.readline)
        assert ports, (directory / "log").read_text(errors="replace")[-3000:]
        port, http_port = map(int, ports.split())
        yield BookieProcess(process, ("127.0.0.1", port), http_port, directory)
        process.send_signal(signal.SIGTERM)
        code = await trio.to_thread.run_sync(lambda: process.wait(STOP_S))
        assert code == 0, f"it ended with {code}"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


async def _run(mode: Mode, directory: Path) -> None:
    token = directory / "token"
    token.touch(0o600)
    token.write_text(TOKEN)
    more = f"httpServerEnabled=true\nhttpServerPort=0\nhttpServerTokenPath={token}\n"
    config = attrs.evolve(
        sweep_config(mode, directory, more),
        new_ledgers=NewLedgersConfig(unconfirmed_max=0),
        admin=AdminConfig(port=0, token_path=token),
    )
    tree, stop = MemoryTree(), trio.Event()
    urls = _Urls()
    logging.getLogger("bookie").addHandler(urls)

    async def wait(*, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                stop.set()
                return

    async with trio.open_nursery() as nursery:
        await nursery.start(wait)

        async def serve(*, task_status: trio.TaskStatus[int]) -> None:
            await run_bookie(
                config,
                open_store=lambda: open_memory_store(tree),
                stop=stop,
                machine=MACHINE,
                task_status=task_status,
            )

        port: int = await nursery.start(serve)
        print(port, urls.port, flush=True)
    if contained_failures:
        logging.error("errors were contained: %s", dict(contained_failures))


class _Urls(logging.Handler):
    """Takes the HTTP port from the line of the log that names it."""

    port = 0

    def emit(self, record: logging.LogRecord) -> None:
        _, found, rest = record.getMessage().partition("http://127.0.0.1:")
        if found:
            self.port = int("".join(each for each in rest.split("/")[0].split()[0] if each.isdigit()))


def main() -> None:
    """Run the bookie until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    try:
        trio.run(_run, Mode[sys.argv[1]], Path(sys.argv[2]))
    except BaseException as exc:
        cause = exc
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        logging.critical("the bookie stops: %r", cause, exc_info=exc)
        sys.exit(int(exit_code_of(cause)))


if __name__ == "__main__":
    main()
