"""``python -m bookie --config FILE [--strict]``: one bookie as a process.

Inside: logging to stderr, signals (SIGHUP reads certificates and secrets again), the limit of open files, the
choice of ZooKeeper as metadata store, exit codes.

0  stopped by SIGTERM or SIGINT
1  the configuration is invalid
2  the port is in use, or an unexpected error
3  the metadata store is unreachable, or the session with it expired
4  the bookie could not be announced
5  the disks: a foreign cookie, a directory that is locked or cannot be written, a failed write

Source: ExitCode.java, Main.java.
"""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys
from pathlib import Path

import trio

from bookie.auth.reloading import open_secrets
from bookie.config.bookie_config import load_config
from bookie.config.classes import BookieConfig
from bookie.disk.descriptor_limit import raise_limit
from bookie.endings import BookieExit, ending_of, exit_code_of
from bookie.http import OpenRoutes
from bookie.main import run_bookie
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.runtime.events import start_logging
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.task_errors import first_error

log = get_logger("bookie")


def run_program(
    config_path: Path,
    *,
    open_routes: OpenRoutes | None = None,
    strict: bool = False,
    with_auto_recovery: bool = False,
) -> int:
    """Run a bookie until a signal stops it; log the reason and return the exit code.

    Args:
        open_routes: More routes for the HTTP server.
        strict: An unknown key in the configuration is an error.
        with_auto_recovery: Auto-recovery runs in this process, whatever the configuration says.
    """
    start_logging(logging.INFO, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)
    try:
        limit = raise_limit()  # first: the configuration derives its defaults from it
        config = load_config(config_path, strict=strict, with_auto_recovery=with_auto_recovery)
        log.info("%d open files allowed, of them %d connections", limit, config.server.connections_max)
        # All objects made so far live until the process ends, so Python's collector can skip them.
        gc.freeze()
        trio.run(_run_until_signalled, config, open_routes)
    except BaseException as exc:  # the top of the program: log it and exit
        cause = first_error(exc)
        if isinstance(cause, KeyboardInterrupt):
            return BookieExit.OK
        code = exit_code_of(cause)
        trace = cause if ending_of(cause) is None else None
        log.critical("the bookie stops (exit code %d): %s", code, cause, exc_info=trace)
        return code
    return BookieExit.OK


def has_secrets(config: BookieConfig) -> bool:
    """True if there are files that SIGHUP makes the bookie read again."""
    admin = config.admin
    return (
        config.tls is not None
        or config.server.auth is not None
        or (admin is not None and (admin.token_path is not None or admin.tls is not None))
    )


def signals_of(config: BookieConfig) -> tuple[signal.Signals, ...]:
    """The signals that the bookie handles itself.

    Without secrets, SIGHUP ends the process as for any program whose terminal closes.
    """
    reloading = (signal.SIGHUP,) if has_secrets(config) else ()
    return (signal.SIGTERM, signal.SIGINT, *reloading)


async def _run_until_signalled(config: BookieConfig, open_routes: OpenRoutes | None) -> None:
    stop = trio.Event()
    secrets = await open_secrets(config.tls, config.server.auth)
    with trio.open_signal_receiver(*signals_of(config)) as signals:
        async with trio.open_nursery() as nursery:

            async def wait_signal() -> None:
                async for number in signals:
                    if number == signal.SIGHUP:
                        log.info("SIGHUP: reading certificates and secrets again")
                        await secrets.reload()
                        continue
                    if stop.is_set():
                        nursery.cancel_scope.cancel()  # the second signal: stop without the pending replies
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
                secrets=secrets,
                open_routes=open_routes,
            )
            nursery.cancel_scope.cancel()


def main() -> int:
    """Parse the command line and run the bookie; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bookie", description="Run one storage server.")
    parser.add_argument("--config", required=True, type=Path, help="Apache's bk_server.conf")
    parser.add_argument("--strict", action="store_true", help="An unknown key in FILE is an error.")
    parser.add_argument(
        "--with-auto-recovery", action="store_true", help="Run auto-recovery in this process, too."
    )
    arguments = parser.parse_args()
    return run_program(
        arguments.config, strict=arguments.strict, with_auto_recovery=arguments.with_auto_recovery
    )


if __name__ == "__main__":
    sys.exit(main())
