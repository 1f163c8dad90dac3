"""`dlog replicate`: keep the backups of a namespace up to date, without an end."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import click

import dlog
from dlog.backup import ReplicaStatus
from dlog.backup.calls import INTERVAL_S, administered
from dlog.backup.pruning import Keep
from dlog.backup.replication import Replication, ReplicationPlan
from dlog.backup.store import open_store
from dlog.cli.operators.backup import keep_option, logs_option, source_uri
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import moment_text, print_json, print_note
from dlog.cli.terminal.signals import run
from dlog.context import NamespaceContext
from ledger.runtime.clock import wall_ms


@click.command("replicate")
@click.argument("source")
@click.option("--to", "destination", required=True, metavar="DEST", help="Where the backups are kept.")
@logs_option()
@click.option(
    "--interval",
    type=click.FloatRange(0, min_open=True),
    default=INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
    help="The time from the begin of a round to that of the next one.",
)
@keep_option(
    help="Keep the newest NUMBER of backups, or those of the time AGE, such as 30d. Default: all hours."
)
@click.option(
    "--give-up-after",
    type=click.FloatRange(0, min_open=True),
    default=math.inf,
    show_default="never",
    metavar="SECONDS",
    help="End if SOURCE or DEST is away for as long.",
)
@json_option("the state after each round that wrote or failed")
def command(
    source: str,
    destination: str,
    logs: tuple[str, ...],
    interval: float,
    keep: Keep | None,
    give_up_after: float,
    as_json: bool,
) -> None:
    """Keep backups of SOURCE (a directory or a URI) at DEST up to date, until the command is ended.

    Writers are not stopped. While SOURCE or DEST is away it tries again. The command may be killed and begun
    again at any time. Of older backups fewer are kept: each of the last hour, one of each minute of the last
    day, one of each hour before.
    """
    report = _Report(destination, as_json)
    run(
        partial(
            _replicate,
            source_uri(source),
            destination,
            ReplicationPlan(interval, keep, give_up_after, logs or None),
            report.show,
        )
    )


async def _replicate(
    uri: str, destination: str, plan: ReplicationPlan, on_round: Callable[[ReplicaStatus], None]
) -> None:
    """As ``Namespace.backup.replicate``, for a namespace that is opened again when it is gone."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[NamespaceContext]:
        async with (
            dlog.open_namespace(uri, read_only=True) as namespace,
            administered(namespace.context) as context,
        ):
            yield context

    await Replication(open_store(destination), opened, plan, wall_ms=wall_ms, on_round=on_round).run()


class _Report:
    """Lines for what has changed since the last round."""

    def __init__(self, destination: str, as_json: bool) -> None:
        self._destination, self._as_json = destination, as_json
        self._shown: tuple[int | None, str | None] = (None, None)

    def show(self, status: ReplicaStatus) -> None:
        """Print the state, if it differs from the one that was printed last."""
        before, self._shown = self._shown, (status.cut_ms, status.failure)
        if before == self._shown:
            return
        if self._as_json:
            print_json(attrs.asdict(status))
        elif status.failure is not None and before[1] is None:
            print_note(f"{self._destination}: {status.failure}; trying again")
        elif status.failure is None and (before[1] is not None or before[0] is None) and status.cut_ms:
            print_note(f"{self._destination}: up to date as of {moment_text(status.cut_ms)}")
