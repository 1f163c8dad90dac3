"""The writer of the demo: appends a file's lines and reports how many are durable.

The transaction id of a line is its number. As a program, ``python -m dlog.cli.demo.writer URI LOG FILE``, it
is the process that the demo kills. It prints a line of JSON for each acknowledged batch:
``{"acknowledged": 1200, "append_s": 0.0011}``.
Always: a line is reported only after ``append`` has returned for it. The writer continues after the last
record of the log.
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

OnDurable = Callable[[int, float], None]


async def write_lines(namespace: dlog.Namespace, log: str, file: Path, on_durable: OnDurable) -> None:
    """Append the lines that the log does not hold yet.

    Of each hundred lines, the first 99 are one batch. The last is a single append, which is timed.

    Args:
        on_durable: Called with the number of durable lines and the seconds of the single append.
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
            on_durable(number, time.perf_counter() - started)


def _report(acknowledged: int, append_s: float) -> None:
    sys.stdout.write(json.dumps({"acknowledged": acknowledged, "append_s": append_s}) + "\n")
    sys.stdout.flush()


async def _main(uri: str, log: str, file: Path) -> None:
    async with dlog.open_namespace(uri) as namespace:
        await write_lines(namespace, log, file, _report)


if __name__ == "__main__":
    logging.getLogger("ledger").setLevel(logging.ERROR)  # the demo kills a bookie on purpose
    trio.run(_main, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
