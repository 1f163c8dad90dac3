"""The size and the parts of a world with logs, drawn from its seed."""

from __future__ import annotations

import random
from typing import Any

import attrs

from dlog.config import NamespaceConfig, ReaderConfig, WriterConfig
from dlog.format.record import PAYLOAD_BYTES_MAX
from namespace.segments.retention import Retention
from tests.simulation.shape import Shape
from tests.simulation.streams.large import RECORD_BYTES_MAX

# A machine cannot detect the loss of this fault, so the rules of logs would have to excuse records.
EXCUSED = frozenset({"bit flip in the newest journal"})


@attrs.frozen
class StreamShape(Shape):
    """``Shape`` and the behaviour of writers, readers and operators."""

    mode: str = "plain"  # how writers append: plain, once, conditional
    segment_bytes_max: int = 4000
    segment_age_s_max: float = 3.0
    purges: bool = True  # writers delete truncated segments
    retention: str = ""  # the log's rule: "", cursors, bytes, age
    operators: int = 1
    deletes: bool = False  # operators delete and create logs
    cursors: int = 1
    hash_chain: bool = False
    rounds_max: int = 25  # of appends while a writer is open
    reopens: bool = False  # writers that stopped are reopened in place, and sessions are renewed
    is_large: bool = False  # some records are cut over several entries
    promotes: bool = False  # operators promote logs, and undo it, instead of what they do else
    heals: bool = False  # operators heal segments, besides what they do else
    shares: bool = False  # writers share the log's writer, in place of taking it over from each other

    @classmethod
    def draw(cls, seed: int, kinds: frozenset[str], *, bookies: int | None = None) -> StreamShape:
        rng = random.Random(f"streams {seed}")
        base: dict[str, Any] = attrs.asdict(
            Shape.draw(seed, kinds, bookies=bookies or rng.choice([3, 3, 4])), recurse=False
        )
        base |= {
            "logs": rng.choice([1, 1, 2]),
            "writers": rng.choice([1, 2, 2, 3]),
            "readers": rng.choice([1, 2, 3]),
            "horizon_s": rng.uniform(8, 16),
            "storm": "",
            "pause_s": rng.choice([0.02, 0.1, 0.4]),
        }
        mode = rng.choice(["plain", "plain", "once", "conditional"])
        later = random.Random(f"streams later {seed}")  # so that what was drawn before stays the same
        drawn = cls(
            **base,
            mode=mode,
            segment_bytes_max=rng.choice([1500, 4000, 12_000]),
            segment_age_s_max=rng.choice([0.4, 1.5, 5.0]),
            purges=rng.random() < 0.7,
            # A record that may be stored once is not given up before its outcome is known.
            retention=rng.choice(["", "cursors", "cursors"] + ["bytes", "age"] * (mode == "plain")),
            operators=rng.choice([0, 1, 1, 2]),
            deletes=rng.random() < 0.3,
            cursors=rng.choice([0, 1, 2]),
            hash_chain=rng.random() < 0.2,
            reopens=later.random() < 0.4,
            is_large=later.random() < 0.25,
        )
        drawn = drawn.promoting() if not drawn.deletes and later.random() < 0.28 else drawn
        drawn = attrs.evolve(drawn, heals=not drawn.promotes and later.random() < 0.3)
        return drawn.sharing() if random.Random(f"streams shared {seed}").random() < 0.12 else drawn

    def promoting(self) -> StreamShape:
        """The same with a promotion: its rules know nothing of deletion, truncation and cursors."""
        return attrs.evolve(
            self,
            promotes=True,
            logs=1,
            operators=2,
            deletes=False,
            truncation=0.0,
            retention="",
            cursors=0,
            segment_bytes_max=min(self.segment_bytes_max, 4000),
        )

    def sharing(self) -> StreamShape:
        """The same with a shared writer: its records have no transaction ids of their own."""
        return attrs.evolve(
            self,
            shares=True,
            mode="plain",
            logs=1,
            writers=max(2, self.writers),
            promotes=False,
            deletes=False,
            is_large=False,
            heals=False,
            retention="",
        )

    def namespace_config(self) -> NamespaceConfig:
        """Small segments and short timeouts: a world lasts for half a minute."""
        return NamespaceConfig(
            ensemble_size=self.ensemble_size,
            write_quorum=self.write_quorum,
            ack_quorum=self.ack_quorum,
            digest_type=self.digest_type,
            password=self.password,
            shared_with_java=False,
            writer=WriterConfig(
                segment_bytes_max=self.segment_bytes_max,
                segment_age_s_max=self.segment_age_s_max,
                visibility_delay_ms=20.0,
                lock_timeout_s=3.0,
                retry_timeout_s=8.0,
                purge=self.purges,
                close_timeout_s=4.0,
                hash_chain=self.hash_chain,
                record_bytes_max=RECORD_BYTES_MAX if self.is_large else PAYLOAD_BYTES_MAX,
            ),
            reader=ReaderConfig(
                relist_interval_s=2.0, retry_timeout_s=10.0, read_bytes_max=8192, read_ahead_bytes_max=16_384
            ),
        ).for_scheme("distributedlog")

    def rule(self) -> Retention | None:
        """The retention of every log."""
        match self.retention:
            case "cursors":
                return Retention(keep_unread=True)
            case "bytes":
                return Retention(size_bytes=8000, keep_unread=True)
            case "age":
                return Retention(age_s=3.0, keep_unread=True)
            case _:
                return None
