"""One process of a benchmark: ``python -m dlog.cli.bench.work.main`` reads its job from standard input."""

from __future__ import annotations

import sys
from collections.abc import Callable

from dlog.cli.bench.loop import replica as loop_replica
from dlog.cli.bench.loop import tail as loop_tail
from dlog.cli.bench.loop.service import SYSTEM as SYSTEM_OF_LOOP
from dlog.cli.bench.work import dlog_latency, dlog_tail, idle, log_life, peer_latency, peer_tail, throughput
from dlog.cli.bench.work.job import Job
from dlog.cli.bench.work.link import Link

Role = Callable[[Job, Link], None]
# Of each role, what the process does for DLog and for another system.
ROLES: dict[str, tuple[Role | None, Role]] = {
    "produce": (dlog_tail.produce, peer_tail.produce),
    "consume": (dlog_tail.consume, peer_tail.consume),
    "latency": (dlog_latency.measure, peer_latency.measure),
    "append": (None, throughput.append_to_peer),  # the command itself appends to DLog
    "fill": (throughput.fill_log, throughput.fill_peer),
    "catchup": (throughput.catch_up_with_log, throughput.catch_up_with_peer),
    "idle": (idle.measure, idle.measure_floor),
    "logs": (log_life.measure, log_life.measure_floor),
}
ROLES_OF_LOOP: dict[str, Role] = {
    "produce": loop_tail.produce,
    "consume": loop_tail.consume,
    "replicate": loop_replica.replicate,
}


def main() -> int:
    """Do the job; return the exit status."""
    link = Link()
    job = link.read_job()
    role: Role | None
    if job.system == SYSTEM_OF_LOOP:
        role = ROLES_OF_LOOP[job.role]
    else:
        of_dlog, of_peer = ROLES[job.role]
        role = of_dlog if job.system == "dlog" else of_peer
    assert role is not None, f"no process has the role {job.role} of {job.system}"
    role(job, link)
    return 0


if __name__ == "__main__":
    sys.exit(main())
