"""One process of a benchmark: ``python -m tests.bench.work.main`` reads its job from standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.bench.loop import replica as loop_replica
from tests.bench.loop import tail as loop_tail
from tests.bench.loop.service import SYSTEM as SYSTEM_OF_LOOP
from tests.bench.work import (
    dlog_latency,
    dlog_tail,
    idle,
    log_life,
    many_writers,
    peer_latency,
    peer_tail,
    sharing,
    throughput,
)
from tests.bench.work.job import Job
from tests.bench.work.link import Link

Role = Callable[[Job, Link], None]
OF_DLOG: dict[str, Role] = {
    "produce": dlog_tail.produce,
    "consume": dlog_tail.consume,
    "latency": dlog_latency.measure,
    "fill": throughput.fill_log,
    "catchup": throughput.catch_up_with_log,
    "idle": idle.measure,
    "logs": log_life.measure,
    "share": sharing.share,
    "many": many_writers.measure,
}
OF_LOOP: dict[str, Role] = {
    "produce": loop_tail.produce,
    "consume": loop_tail.consume,
    "replicate": loop_replica.replicate,
}
OF_PEERS: dict[str, Role] = {
    "produce": peer_tail.produce,
    "consume": peer_tail.consume,
    "latency": peer_latency.measure,
    "append": throughput.append_to_peer,  # the command itself appends to DLog
    "fill": throughput.fill_peer,
    "catchup": throughput.catch_up_with_peer,
    "idle": idle.measure_floor,
    "logs": log_life.measure_floor,
    "many": many_writers.measure_one_log,
}
ROLES = {"dlog": OF_DLOG, SYSTEM_OF_LOOP: OF_LOOP}


def main() -> int:
    """Do the job; return the exit status."""
    link = Link()
    job = link.read_job()
    ROLES.get(job.system, OF_PEERS)[job.role](job, link)
    return 0


if __name__ == "__main__":
    sys.exit(main())
