"""The options of a benchmark, and its outcome."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import click

from dlog.cli.bench.latency import Latencies

PAYLOADS = 64
Callback = TypeVar("Callback", bound=Callable[..., Any])
_PLACE_OPTIONS = (
    click.option("--uri", metavar="URI", help="An existing namespace. Its other logs are not touched."),
    click.option(
        "--cluster",
        "bookies",
        type=click.IntRange(3, 20),
        metavar="N",
        help="Start a ZooKeeper and N bookies for this benchmark.",
    ),
)


def place_options(callback: Callback) -> Callback:
    """Add the options that name the namespace under measurement: ``uri`` and ``bookies``."""
    for option in reversed(_PLACE_OPTIONS):
        callback = option(callback)
    return callback


def check_place(uri: str | None, bookies: int | None) -> None:
    """Check the values of ``place_options``.

    Raises:
        click.UsageError: Both are given.
    """
    if uri is not None and bookies is not None:
        raise click.UsageError("--uri and --cluster exclude each other; give one of them")


@attrs.frozen(kw_only=True)
class BenchOptions:
    """One benchmark. At the ledger level a record is an entry."""

    workload: str  # append, tail or catchup
    level: str  # ledger or stream
    records: int
    size: int  # payload bytes of a record
    inflight: int  # records submitted and not yet acknowledged
    batch: int  # records of one append_many; 1 at the ledger level, which submits single entries

    @property
    def group(self) -> int:
        """Records that the floor syncs at once: as many as one sync may cover in the benchmark."""
        return min(self.inflight, self.records)

    @property
    def warm_up(self) -> int:
        """Records to write before the clock starts, so that connections exist and code is loaded."""
        return min(1000, max(1, self.records // 10))

    def payloads(self) -> list[bytes]:
        """Different payloads that do not compress; a workload uses them in turn."""
        return [os.urandom(self.size) for _ in range(PAYLOADS)]


@attrs.frozen
class Outcome:
    """The measurements of a workload, from the first submit to the last acknowledgement or record read."""

    seconds: float
    latencies: Latencies
