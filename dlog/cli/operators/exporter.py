"""`dlog exporter`: the figures of a namespace and its cluster for Prometheus, until a signal stops it.

Inside: options. Not inside: what is collected (``dlog.page.exporter``), HTTP (``bookie.http``).
Always: nothing is changed.
"""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import click
import trio

from dlog.cli.terminal.options import uri_option
from dlog.cli.terminal.output import print_note
from dlog.cli.terminal.signals import run
from dlog.cli.terminal.spark_lookup import committed_positions
from ledger.runtime.events import start_logging
from ledger.runtime.readiness import READY, notify


@click.command("exporter")
@uri_option
@click.option(
    "--listen",
    default="127.0.0.1:9188",
    show_default=True,
    metavar="HOST:PORT",
    help="Serve /metrics and /heartbeat here; port 0: a free one.",
)
@click.option(
    "--logs",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Only logs whose names match, such as 'orders*'; may be repeated. [default: all]",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two collections.",
)
@click.option(
    "--spark-checkpoint",
    "checkpoints",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="The lag of the streaming query with this checkpoint; may be repeated.",
)
def command(
    uri: str, listen: str, patterns: tuple[str, ...], interval_s: float, checkpoints: tuple[Path, ...]
) -> None:
    """Serve figures of logs, cursors, ledgers and bookies to Prometheus until a signal stops this process.

    The figures are collected at the interval, however often they are scraped. They need no token: listen
    only where all that reach the port may know the names of logs and cursors.
    """
    host, port = _address(listen)
    start_logging(logging.INFO, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kazoo").setLevel(logging.WARNING)

    async def go() -> None:
        # Here, so that no other command imports the bookie.
        from bookie.http import serve_metrics
        from dlog.page.exporter import Exporter

        exporter = Exporter(
            uri,
            patterns=patterns,
            interval_s=interval_s,
            checkpoints={str(each): partial(committed_positions, each) for each in checkpoints},
        )
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve_metrics, exporter.text, host, port)
            notify(READY)
            print_note(f"metrics are served at {url}/metrics")
            nursery.start_soon(exporter.run)

    run(go)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5) or int(port) > 65535:
        raise click.UsageError(f"--listen: expected HOST:PORT, such as 127.0.0.1:9188, not {text!r}")
    return host, int(port)
