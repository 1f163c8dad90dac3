"""The size and the parts of a world with auto-recovery, drawn from its seed."""

from __future__ import annotations

import random
from typing import Any

import attrs

from ledger.replication import ReplicationConfig
from tests.simulation.shape import Shape

BOOKIES = 5
SMALL = 3  # as many as a ledger needs
QUORUMS = [(3, 3, 2)] * 4 + [(3, 2, 2)] * 2 + [(4, 3, 2)] + [(3, 3, 3)] * 2
CHECK_S_MAX = 15.0  # between two checks of one kind


@attrs.frozen
class HealShape(Shape):
    """``Shape`` and the behaviour of auditors and workers."""

    is_inside: bool = False  # auto-recovery runs in the processes of the bookies; else in two of its own
    verified_percentage: int = 100
    delay_s: int = 0  # how long a bookie may be away
    grace_s: float = 3.0  # for the writer of an open ledger
    batch_entries: int = 2

    @classmethod
    def draw(cls, seed: int, kinds: frozenset[str], *, bookies: int | None = None) -> HealShape:
        rng = random.Random(f"healing {seed}")
        # In a world without a spare bookie none is lost for good, and nothing can be copied to another one.
        is_small = bookies is None and random.Random(f"small {seed}").random() < 0.25
        count = bookies or (SMALL if is_small else BOOKIES)
        base: dict[str, Any] = attrs.asdict(Shape.draw(seed, kinds, bookies=count), recurse=False)
        sizes = rng.choice(
            [sizes for sizes in QUORUMS if sizes[0] < count or (is_small and sizes[0] == count)]
        )
        base |= {
            "ensemble_size": sizes[0],
            "write_quorum": sizes[1],
            "ack_quorum": sizes[2],
            "storm": "",
            "has_delays": "delay" in kinds and rng.random() < 0.4,
            "writers": rng.choice([1, 1, 2]) if "second writer" in kinds else 1,
            "readers": rng.choice([0, 1]),
            "horizon_s": rng.uniform(14, 24),
            "entries_max": rng.choice([6, 15]),
            "pause_s": rng.choice([0.05, 0.2, 0.5]),
            "truncation": rng.choice([0.0, 0.0, 0.3]),
            "reads_files": False,
        }
        return cls(
            **base,
            is_inside=rng.random() < 0.4,
            verified_percentage=rng.choice([100, 100, 0]),
            delay_s=rng.choice([0, 0, 0, 2]),
            grace_s=rng.choice([1.0, 3.0]),
            batch_entries=rng.choice([1, 2, 10]),
        )

    def replication_config(self) -> ReplicationConfig:
        """Short intervals: a world lasts for a minute."""
        return ReplicationConfig(
            lost_bookie_delay_s=self.delay_s,
            bookie_check_interval_s=CHECK_S_MAX,
            ledger_check_interval_s=10.0,
            verified_percentage=self.verified_percentage,
            replicas_check_interval_s=12.0,
            replicas_check_ledgers_per_s=50.0,
            open_ledger_grace_s=self.grace_s,
            failed_ledger_pause_s=8.0,
            retry_pause_s=1.0,
            batch_entries=self.batch_entries,
            batch_bytes_min=0,
            batch_bytes_max=16_384,
            reads_in_flight_max=8,
        )
