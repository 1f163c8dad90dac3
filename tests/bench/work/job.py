"""The job of one process of a benchmark, as the line of JSON that starts it; and the payloads of `tail`."""

from __future__ import annotations

import json
import struct
from typing import Any

import attrs

STAMP = struct.Struct(">qq")  # of each record of `tail`: when it was due, in ns; its number


@attrs.frozen(kw_only=True)
class Job:
    """The work of one process, and its system."""

    role: str  # a name in ``ROLES`` of ``main``
    system: str  # "dlog", "file" or the name of a peer
    address: dict[str, Any]  # how the system is reached; its own form for each system
    records: int
    size: int  # payload bytes of a record
    rate: float = 0  # records per second, for the roles of `tail`
    left_out: int = 0  # records at the start that are not measured
    inflight: int = 1  # records that are appended and not acknowledged, for `append` and `catchup`
    batch: int = 1  # records of one append there

    def encoded(self) -> str:
        """The job as one line of JSON."""
        return json.dumps(attrs.asdict(self))


def decode_job(line: str) -> Job:
    """The job of a line that ``Job.encoded`` made."""
    return Job(**json.loads(line))


def stamped(due_ns: int, number: int, rest: bytes) -> bytes:
    """The payload of a record of `tail`."""
    return STAMP.pack(due_ns, number) + rest
