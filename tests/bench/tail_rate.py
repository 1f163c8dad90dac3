"""`tail`: options, the order of the processes, and output.

Not inside: the work of the processes (``work``), other systems (``peers``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
import trio

from dlog.cli.bench.latency import SHARES
from dlog.cli.bench.options import check_place, place_options
from dlog.cli.bench.rows import print_rows, with_ratios
from dlog.cli.bench.target import open_target
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.scratch import open_scratch
from dlog.cli.terminal.signals import run
from tests.bench.loop import service as loop_service
from tests.bench.peers.seam import Peer
from tests.bench.peers.table import FLOOR, chosen, peers_option, print_missing
from tests.bench.schedule import left_out
from tests.bench.work.job import STAMP, Job
from tests.bench.work.link import BenchError, open_worker

SECONDS = 8  # of each system, without --records
SIZE = 1024
START_MARGIN_NS = 100_000_000  # both processes are ready; the first record is due this much later
SLACK_S = 60  # beyond the schedule, before a system is given up


@attrs.frozen(kw_only=True)
class RateOptions:
    """One measurement."""

    rate: float
    records: int
    size: int

    def job(self, role: str, system: str, address: dict[str, Any]) -> Job:
        """The job of one process."""
        return Job(
            role=role,
            system=system,
            address=address,
            records=self.records,
            size=self.size,
            rate=self.rate,
            left_out=left_out(self.records),
        )


@click.command("tail")
@click.option(
    "--rate",
    type=click.FloatRange(min=1, max=1_000_000),
    metavar="R",
    required=True,
    help="Append R records per second by an open-loop schedule, and read them in a second process.",
)
@place_options
@click.option("--records", type=click.IntRange(min=1), help=f"[default: those of {SECONDS} seconds]")
@click.option(
    "--size",
    type=click.IntRange(STAMP.size, 1_000_000),
    default=SIZE,
    show_default=True,
    help="Payload bytes.",
)
@peers_option
@json_option("measurements and options")
def command(
    rate: float,
    uri: str | None,
    bookies: int | None,
    records: int | None,
    size: int,
    peers: str | None,
    as_json: bool,
) -> None:
    """Measure following a log in a second process, beside two floors.

    A record's latency begins when the record is due, also if the writer is late, and ends when a reader in
    another process has it. The first 5 % are left out. Each record holds its due time and its number.
    """
    systems, missing = chosen(peers)
    check_place(uri, bookies)
    options = RateOptions(
        rate=rate, records=max(1, round(rate * SECONDS)) if records is None else records, size=size
    )
    with open_scratch("bench") as directory:
        document = run(partial(_measure, directory, options, uri, bookies, systems))
    document["not_installed"] = missing
    if as_json:
        print_json(document)
    else:
        _print(document)


async def _measure(
    directory: Path, options: RateOptions, uri: str | None, bookies: int | None, peers: Sequence[Peer]
) -> dict[str, object]:
    async with open_target(directory, uri, bookies) as target:
        address = {"uri": target.uri}
        rows = [await measure_system("dlog", address, options, target.replicas, target.bookies_cpu_s)]
        rows.append(await _measure_peer(FLOOR, directory, options, target.replicas))
        rows.append(await _measure_loop(directory, options, target.replicas))
        for peer in peers:
            rows.append(await _measure_peer(peer, directory, options, target.replicas))
        return {
            "systems": with_ratios(rows, RATIOS),
            "options": attrs.asdict(options)
            | {"left_out": left_out(options.records), "uri": target.uri, "replicas": target.replicas},
        }


async def _measure_peer(
    peer: Peer, directory: Path, options: RateOptions, replicas: int
) -> dict[str, object]:
    place = directory / f"peer-{peer.name}"
    place.mkdir()
    async with peer.serve(place, replicas) as service:
        return await measure_system(
            peer.name, service.address, options, service.replicas, service.servers_cpu_s
        )


async def _measure_loop(directory: Path, options: RateOptions, replicas: int) -> dict[str, object]:
    place = directory / loop_service.SYSTEM
    place.mkdir()
    async with loop_service.serve(place, replicas, records=options.records, size=options.size) as service:
        return await measure_system(
            loop_service.SYSTEM, service.address, options, service.replicas, service.servers_cpu_s
        )


async def measure_system(
    system: str,
    address: dict[str, Any],
    options: RateOptions,
    replicas: int,
    servers_cpu_s: Callable[[], float | None],
) -> dict[str, object]:
    """Run the producer and the consumer of one system; return its row.

    Raises:
        BenchError: A process failed, or the reader did not get every record in time.
    """
    limit_s = options.records / options.rate + SLACK_S
    with trio.move_on_after(limit_s):
        async with open_worker(options.job("produce", system, address)) as producer:
            ready = await producer.receive("ready")
            # DLog's producer names the log that it made.
            address = address | {name: value for name, value in ready.items() if name != "event"}
            async with open_worker(options.job("consume", system, address)) as consumer:
                await consumer.receive("ready")
                await producer.send(start_ns=time.monotonic_ns() + START_MARGIN_NS)
                await producer.receive("mark")
                before = servers_cpu_s()
                produced = await producer.receive("done")
                consumed = await consumer.receive("done")
                after = servers_cpu_s()
                await consumer.stop()
            await producer.stop()
        measured = options.records - left_out(options.records)
        servers_us = None if before is None or after is None else (after - before) / measured * 1e6
        return row(system, replicas, produced["cpu_us"], consumed, servers_us)
    raise BenchError(
        f"{system}: the reader did not get all {options.records} records within {limit_s:.0f} s;"
        " give a lower --rate"
    )


def row(
    system: str, replicas: int, producer_us: float, consumed: dict[str, float], servers_us: float | None
) -> dict[str, object]:
    """The figures of one system: latencies in ms, CPU time of each record in microseconds."""
    consumer_us = consumed["cpu_us"]
    return {
        "system": system,
        "replicas": replicas,
        **{name: consumed[name] for name in SHARES},
        "cpu_us": round(producer_us + consumer_us + (servers_us or 0), 1),
        "cpu_producer_us": round(producer_us, 1),
        "cpu_consumer_us": round(consumer_us, 1),
        "cpu_servers_us": None if servers_us is None else round(servers_us, 1),
    }


RATIOS = {"p50_ratio": "p50_ms", "p99_ratio": "p99_ms", "cpu_ratio": "cpu_us"}
COLUMNS = {
    "system": "system",
    "copies": "replicas",
    "p50 ms": "p50_ms",
    "p90 ms": "p90_ms",
    "p99 ms": "p99_ms",
    "p99.9 ms": "p99_9_ms",
    "max ms": "max_ms",
    "CPU us": "cpu_us",
    "producer": "cpu_producer_us",
    "consumer": "cpu_consumer_us",
    "servers": "cpu_servers_us",
    "dlog/p50": "p50_ratio",
    "dlog/p99": "p99_ratio",
    "dlog/CPU": "cpu_ratio",
}


def _print(document: dict[str, Any]) -> None:
    print_rows(COLUMNS, document["systems"])
    print_missing(document["not_installed"])
    options = document["options"]
    print_note(
        f"{options['rate']:g} records/s of {options['size']} bytes, {options['records']} records, the first"
        f" {options['left_out']} left out. CPU of each record in us: user and system time of the producer, of"
        " the consumer and of the system's servers. dlog/...: DLog's figure divided by the system's."
    )
