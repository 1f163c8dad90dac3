"""The digest of blocks that come one after the other."""

# covers: dlog/blobs/digest.py

from __future__ import annotations

import hashlib

import pytest

from dlog.blobs.digest import THREAD_BYTES_MIN, ContentDigest


@pytest.mark.parametrize(
    "lengths", [[], [0], [1, 2], [THREAD_BYTES_MIN] * 4, [3, THREAD_BYTES_MIN, 5, THREAD_BYTES_MIN + 1]]
)
async def test_it_is_that_of_all_blocks_in_order(lengths: list[int]) -> None:
    digest, content = ContentDigest(), b""
    for number, length in enumerate(lengths):
        block = bytes([number]) * length
        await digest.update(block)
        content += block
    assert await digest.hexdigest() == hashlib.sha256(content).hexdigest()
