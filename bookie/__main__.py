"""``python -m bookie --config FILE``: one bookie as a process.

Inside: logging to stderr, signals, the choice of ZooKeeper as metadata store, exit codes.

0  stopped by SIGTERM or SIGINT
1  the configuration cannot be obeyed
2  the port is in use, or anything unexpected
3  nobody answers at the metadata store, or its session is over
4  the bookie could not be announced
5  its disks: a foreign cookie, a directory that is locked or cannot be written, a failed write

Source: ExitCode.java, Main.java.
"""

from __future__ import annotations

import argparse
import enum
import gc
import logging
import signal
import sys
from pathlib import Path

import trio

from bookie.config import BookieConfig, load_config
from bookie.errors import (
    BookieServerError,
    ConfigError,
    ListenError,
    RegistrationError,
)
from bookie.run import run_bookie
from namespace.errors import NamespaceError
from namespace.zookeeper import open_zookeeper_store

log = logging.getLogger("bookie")


class ExitCode(enum.IntEnum):
    """How a bookie's process ends."""

    OK = 0
    CONFIG = 1
    SERVER = 2
    METADATA = 3
    REGISTRATION = 4
    DISKS = 5


def exit_code_of(error: BaseException) -> ExitCode:
    """The code that tells an operator's scripts where to look."""
    match error:
        case ConfigError():
            return ExitCode.CONFIG
        case ListenError():
            return ExitCode.SERVER
        case NamespaceError():
            return ExitCode.METADATA
        case RegistrationError():
            return ExitCode.REGISTRATION
        case BookieServerError() | OSError():
            return ExitCode.DISKS
        case _:
            return ExitCode.SERVER


def run_program(config_path: Path) -> int:
    """Run a bookie until a signal stops it; return the process's exit code, the reason being logged."""
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    try:
        config = load_config(config_path)
        # What exists now lives as long as the process: the collector need not look at it again.
        gc.freeze()
        trio.run(_run_until_signalled, config)
    except BaseException as exc:  # the top of the program: report and end
        cause = exc
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if isinstance(cause, KeyboardInterrupt):
            return ExitCode.OK
        code = exit_code_of(cause)
        expected = isinstance(cause, (BookieServerError, NamespaceError, OSError))
        log.critical("the bookie stops (exit code %d): %s", code, cause, exc_info=None if expected else cause)
        return code
    return ExitCode.OK


async def _run_until_signalled(config: BookieConfig) -> None:
    stop = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:

            async def wait_signal() -> None:
                async for number in signals:
                    if stop.is_set():
                        nursery.cancel_scope.cancel()  # asked twice: without waiting for answers
                    log.info("%s: stopping", signal.Signals(number).name)
                    stop.set()

            nursery.start_soon(wait_signal)
            metadata = config.metadata
            await run_bookie(
                config,
                open_store=lambda: open_zookeeper_store(
                    metadata.hosts, session_timeout_ms=metadata.session_timeout_ms
                ),
                stop=stop,
            )
            nursery.cancel_scope.cancel()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bookie", description="Run one storage server.")
    parser.add_argument("--config", required=True, type=Path, help="Apache's bk_server.conf")
    return run_program(parser.parse_args().config)


if __name__ == "__main__":
    sys.exit(main())
