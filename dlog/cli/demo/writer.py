"""The writer of the demo: appends a file's lines, each with its number as transaction id, and tells what is
durable.

Run as a program it is the process that gets killed: ``python -m dlog.cli.demo.writer URI LOG FILE`` prints
a line of JSON for each acknowledged batch, ``{"acknowledged": 1200, "append_s": 0.0011}``.
Always: a number is told only after ``append`` has returned for it; writing goes on behind the last record
of the log.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

import trio

import dlog
from dlog.cli.demo.lines import read_lines

BATCH_LINES = 100

Told = Callable[[int, float], None]


async def write_lines(namespace: dlog.Namespace, log: str, file: Path, told: Told) -> None:
    """Append the lines that the log does not hold yet.

    Of each hundred lines all but the last go as one batch; the last is a single append, awaited alone, and
    timed.

    Args:
        told: Called with the number of lines that are durable, and how long the single append took in
            seconds.
    """
    async with namespace.open_writer(log) as writer:
        number = max(writer.last_txid, 0)
        lines = itertools.islice(read_lines(file), number, None)
        while batch := list(itertools.islice(lines, BATCH_LINES)):
            *many, single = batch
            if many:
                await writer.append_many(many, txids=range(number + 1, number + 1 + len(many)))
            number += len(batch)
            started = time.perf_counter()
            await writer.append(single, txid=number)
            told(number, time.perf_counter() - started)


def _tell_parent(acknowledged: int, append_s: float) -> None:
    sys.stdout.write(json.dumps({"acknowledged": acknowledged, "append_s": append_s}) + "\n")
    sys.stdout.flush()


async def _main(uri: str, log: str, file: Path) -> None:
    async with dlog.open_namespace(uri) as namespace:
        await write_lines(namespace, log, file, _tell_parent)


if __name__ == "__main__":
    logging.getLogger("ledger").setLevel(logging.ERROR)  # that a bookie was killed is no news here
    trio.run(_main, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
