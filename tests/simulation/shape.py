"""The size and the parts of a world, drawn from its seed.

There are three kinds of worlds. Most have faults from a plan only. In a "takeover" storm two writers take a
log over from each other again and again while connections break. In an "ensemble" storm bookies refuse adds
now and then, so that ensembles change all the time. The storms make the rare races of replication likely
(docs/protocol.md 5.6 and 7.4).
"""

from __future__ import annotations

import random
from typing import Literal

import attrs

from dlog.testing.platter import LOSSES, TORN
from ledger.digest import DigestType

ADD_VERSIONS: tuple[Literal[2, 3], ...] = (2, 2, 2, 2, 3)
QUORUMS = [(3, 3, 2)] * 5 + [(3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 3, 3), (2, 2, 2), (3, 2, 1), (2, 2, 1)]


@attrs.frozen
class Shape:
    """The size and the parts of a world; the seed determines all of it."""

    seed: int
    bookies: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    logs: int
    writers: int  # of each log
    readers: int
    horizon_s: float  # until faults stop
    entries_max: int  # rounds of writes to one ledger
    pause_s: float
    truncation: float
    add_version: Literal[2, 3]
    digest_type: DigestType
    password: bytes
    flush_interval_s: float
    gc_interval_s: float
    journals: int
    ledger_directories: int
    entry_log_bytes: int
    journal_bytes: int
    has_page_index: bool  # an index file for each ledger; else chunks in one map
    reads_files: bool  # clients read entry logs themselves
    losses: tuple[str, ...]  # how a power cut treats writes that were not synced
    tears: bool
    reorders: bool
    has_delays: bool
    storm: str  # "takeover", "ensemble", or empty for none

    @classmethod
    def draw(cls, seed: int, kinds: frozenset[str], *, bookies: int | None = None) -> Shape:
        rng = random.Random(f"shape {seed}")
        storm = rng.choice(["", "", "", "takeover", "ensemble"])
        count = bookies or rng.choice([5, 6] if storm == "ensemble" else [3, 3, 4, 4, 5, 6])
        spares = 2 if storm == "ensemble" and bookies is None else 0
        sizes = rng.choice([q for q in QUORUMS if q[0] <= count - spares])
        if "flaky connections" not in kinds and storm == "takeover":
            storm = ""
        if "refused adds" not in kinds and storm == "ensemble":
            storm = ""
        return cls(
            seed=seed,
            bookies=count,
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
            logs=1,
            writers=(2 if storm == "takeover" else 1 if storm == "ensemble" else rng.choice([1, 2, 2, 2]))
            if "second writer" in kinds
            else 1,
            readers=rng.choice([0, 1, 1, 2]),
            horizon_s=rng.uniform(6, 12) if storm else rng.uniform(12, 30),
            entries_max=rng.choice([2, 6, 15]) if storm != "ensemble" else 20,
            pause_s=rng.choice([0.005, 0.02, 0.05] if storm else [0.05, 0.4, 1.2]),
            truncation=rng.choice([0.0, 0.3, 0.7]),
            add_version=rng.choice(ADD_VERSIONS),
            digest_type=rng.choice([DigestType.CRC32C] * 3 + [DigestType.CRC32, DigestType.MAC]),
            password=rng.choice([b"", b"secret"]),
            flush_interval_s=rng.choice([0.7, 2.0, 7.0]),
            gc_interval_s=rng.choice([4.0, 10.0, 30.0]),
            journals=rng.choice([1, 1, 2]),
            ledger_directories=rng.choice([1, 1, 2]),
            entry_log_bytes=rng.choice([6 << 10, 24 << 10, 24 << 10]),
            journal_bytes=rng.choice([64 << 10, 128 << 10]),
            has_page_index=random.Random(f"index {seed}").random() < 0.3,
            reads_files="files read by clients" in kinds and random.Random(f"files {seed}").random() < 0.4,
            losses=tuple(loss for loss in LOSSES if loss in kinds),
            tears=TORN in kinds,
            reorders="reorder" in kinds,
            has_delays="delay" in kinds and (bool(storm) or rng.random() < 0.6),
            storm=storm,
        )
