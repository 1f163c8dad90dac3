"""`shared`: many programs that write one log, beside one writer of its own in the same run.

Inside: what is measured, and the arithmetic. Not inside: the processes (``work.sharing``).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from dlog.cli.bench.options import check_place, place_options
from dlog.cli.bench.rows import print_rows
from dlog.cli.bench.target import open_target
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from tests.bench.work.job import Job
from tests.bench.work.link import Worker, open_worker

LIMIT_S = 300  # of the whole measurement
NS = 1_000_000_000
ROUNDS = 3  # by turns
COLUMNS = {
    "what": "what",
    "unit": "unit",
    "own writer": "own",
    "shared": "shared",
    "ratio": "ratio",
    "rounds": "ratios",
}


@attrs.frozen(kw_only=True)
class SharingOptions:
    """One measurement."""

    processes: int
    records: int  # lone appends of a round
    batches: int  # of a round, of all processes together
    batch: int
    size: int
    kills: int


@click.command("shared")
@click.option("--processes", type=click.IntRange(2, 100), default=8, show_default=True)
@click.option("--records", type=click.IntRange(1), default=1000, show_default=True, help="Lone appends.")
@click.option("--batches", type=click.IntRange(1), default=800, show_default=True, help="Of all processes.")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Records of one."
)
@click.option("--size", type=click.IntRange(0, 1_000_000), default=200, show_default=True)
@click.option("--kills", type=click.IntRange(0, 1000), default=5, show_default=True)
@place_options
@json_option("measurements and options")
def command(uri: str | None, bookies: int | None, as_json: bool, **given: int) -> None:
    """Measure programs that share the writer of a log, beside one writer of its own.

    A lone append of a program that forwards; batches of all programs together, as many in flight as there
    are programs; the time from a kill of the owner until another program's append is acknowledged.
    """
    check_place(uri, bookies)
    options = SharingOptions(**given)
    with open_scratch("bench") as directory:
        document = run(partial(_measure, directory, options, uri, bookies))
    if as_json:
        print_json(document)
        return
    print_rows(COLUMNS, document["figures"])
    print_note(f"{options.processes} programs, {ROUNDS} rounds by turns; medians. The rounds are ratios.")


async def _measure(
    directory: Path, options: SharingOptions, uri: str | None, bookies: int | None
) -> dict[str, Any]:
    lone: list[tuple[float, float]] = []
    rates: list[tuple[float, float]] = []
    with trio.fail_after(LIMIT_S + 30 * options.kills):
        async with open_target(directory, uri, bookies) as target:
            for _ in range(ROUNDS):
                async with open_worker(_job(options, target.uri, shared=False)) as alone:
                    await alone.receive("open")
                    own_us = await _lone_us(alone, options)
                    own_rate = await _rate([alone], options)
                    await alone.stop()
                async with AsyncExitStack() as stack:
                    owner, *others = await _crowd(stack, options, target.uri)
                    lone.append((own_us, await _lone_us(others[0], options)))
                    rates.append((own_rate, await _rate([owner, *others], options)))
                    for each in (*others, owner):
                        await each.stop()
            takeovers = [await _takeover_s(options, target.uri) for _ in range(options.kills)]
    return {
        "options": attrs.asdict(options),
        "figures": [
            row("forwarded append, p50", "us", lone),
            row(f"batches of {options.batch}", "records/s", rates),
            *([takeover_row(takeovers)] if takeovers else []),
        ],
    }


def _job(options: SharingOptions, uri: str, *, shared: bool) -> Job:
    return Job(
        role="share",
        system="dlog",
        address={"uri": uri, "shared": shared},
        records=options.records,
        size=options.size,
        batch=options.batch,
    )


async def _crowd(stack: AsyncExitStack, options: SharingOptions, uri: str) -> list[Worker]:
    """The programs; the first is the owner."""
    workers = list[Worker]()
    for _ in range(options.processes):
        worker = await stack.enter_async_context(open_worker(_job(options, uri, shared=True)))
        opened = await worker.receive("open")
        assert opened["is_owner"] == (not workers), "the first that opens the log owns it"
        workers.append(worker)
    return workers


async def _lone_us(worker: Worker, options: SharingOptions) -> float:
    await worker.send(lone=options.records)
    times_ns: list[int] = (await worker.receive("done"))["times_ns"]
    return statistics.median(times_ns) / 1000


async def _rate(workers: Sequence[Worker], options: SharingOptions) -> float:
    """Records a second. One program has as many batches in flight as all of several."""
    each = options.batches // len(workers)
    for worker in workers:
        await worker.send(batches=each, tasks=options.processes // len(workers))
    done = [await worker.receive("done") for worker in workers]
    return rate(each * len(workers) * options.batch, done)


async def _takeover_s(options: SharingOptions, uri: str) -> float:
    """From the kill of the owner until another program's record is durable."""
    async with AsyncExitStack() as stack:
        owner, *others = await _crowd(stack, options, uri)
        began_s = trio.current_time()
        owner.kill()
        await others[0].send(lone=1)
        await others[0].receive("done")
        found_s = trio.current_time() - began_s
        for each in others:
            await each.stop()
    return found_s


def rate(records: int, done: Sequence[dict[str, Any]]) -> float:
    """Records a second, from the first program's begin to the last one's end."""
    took_ns: int = max(each["ended_ns"] for each in done) - min(each["began_ns"] for each in done)
    return records * NS / took_ns


def row(what: str, unit: str, rounds: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Medians of one's own writer and of shared ones, and of their ratios."""
    ratios = [shared / own for own, shared in rounds]
    own, shared = zip(*rounds, strict=True)
    return {
        "what": what,
        "unit": unit,
        "own": round(statistics.median(own)),
        "shared": round(statistics.median(shared)),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(each, 2) for each in ratios],
    }


def takeover_row(takeovers_s: Sequence[float]) -> dict[str, Any]:
    """The slowest take-over, and each."""
    return {
        "what": "slowest take-over",
        "unit": "s",
        "own": None,
        "shared": round(max(takeovers_s), 3),
        "ratio": None,
        "ratios": [round(each, 3) for each in takeovers_s],
    }
