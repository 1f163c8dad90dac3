"""Records that are cut over several entries, small enough for a world.

Inside: the limits of such worlds, the sizes that writers draw. Not inside: cutting and joining, which are the
library's.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from dlog.format import large_record
from dlog.write import batcher, record_rooms

PART_BYTES = 500
PAYLOAD_BYTES_MAX = PART_BYTES + large_record._HEAD.size  # of a record in one entry
RECORD_BYTES_MAX = 6000
SIZES_BYTES = (
    PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MAX + 1,
    2 * PART_BYTES,
    3000,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MAX + 1,  # refused
)


@contextmanager
def small_parts() -> Iterator[None]:
    """A block in which a record of more than ``PAYLOAD_BYTES_MAX`` bytes is a large one."""
    with (
        patch.object(large_record, "PART_BYTES_MAX", PART_BYTES),
        patch.object(large_record, "STORED_BYTES_MAX", RECORD_BYTES_MAX),
        patch.object(batcher, "PAYLOAD_BYTES_MAX", PAYLOAD_BYTES_MAX),
        patch.object(record_rooms, "PAYLOAD_BYTES_MAX", PAYLOAD_BYTES_MAX),
    ):
        yield


def padding_bytes(rng: random.Random, head_bytes: int) -> int:
    """How many bytes follow the head of a payload."""
    return rng.choice(SIZES_BYTES) - head_bytes if rng.random() < 0.3 else rng.choice([0, 0, 40, 300])
