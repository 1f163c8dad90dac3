"""An entry log as a file of this machine.

Inside: reading at an offset, with and without a thread. Not inside: finding the file (``ledger.deploy``), the
entries in it (``local_reads``).
Always: a read that may wait for the disk is in a thread.
"""

from __future__ import annotations

import os

import trio


class DescriptorLog:
    """An entry log by its descriptor, which belongs to this object."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __repr__(self) -> str:
        return f"<DescriptorLog {self.descriptor}>"

    def read_at_hand(self, view: memoryview, offset: int) -> int:
        """Fill the view with bytes of the page cache; see ``EntryLogFile``."""
        return os.preadv(self.descriptor, [view], offset, os.RWF_NOWAIT)

    async def read(self, size_bytes: int, offset: int) -> bytes:
        """Read in a thread; see ``EntryLogFile``. Cancelled, it still waits for the thread."""
        return await trio.to_thread.run_sync(os.pread, self.descriptor, size_bytes, offset)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)
        self.descriptor = -1
