"""The digest of a content that comes block by block, computed beside the work on the next block.

Always: ``hexdigest`` is that of all blocks, in order; at most one block is waited for.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import partial

import trio

THREAD_BYTES_MIN = 256 * 1024  # less is computed at once


class ContentDigest:
    """The SHA-256 of a content."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._is_idle = trio.Event()
        self._is_idle.set()

    async def update(self, block: bytes) -> None:
        """Add bytes after the others, in a thread if they are many, while the caller continues."""
        await self._is_idle.wait()
        if len(block) < THREAD_BYTES_MIN:
            self._digest.update(block)
            return
        is_idle, token = trio.Event(), trio.lowlevel.current_trio_token()
        self._is_idle = is_idle

        def done(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(is_idle.set)

        trio.lowlevel.start_thread_soon(partial(self._digest.update, block), done, "dlog blob digest")

    async def hexdigest(self) -> str:
        """The digest of all bytes."""
        await self._is_idle.wait()
        return self._digest.hexdigest()
