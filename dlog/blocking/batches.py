"""A writer of a detached segment without ``async``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from dlog.blocking.closing import close_after_block
from dlog.bulk import detached
from dlog.bulk.plan import DetachedSegment
from ledger.runtime.tasks.loop_thread import Held, LoopThread


class DetachedSegmentWriter:
    """See ``dlog.bulk.DetachedSegmentWriter``. Made by ``Namespace.open_detached_segment``.

    Closed by ``close`` or the end of a ``with`` block. If the block raises, the segment is given up.
    """

    def __init__(
        self, loop: LoopThread, manager: AbstractAsyncContextManager[detached.DetachedSegmentWriter]
    ) -> None:
        self._loop = loop
        self._held = Held(loop, manager)
        self._writer = self._held.value
        self.log = self._writer.log

    def __repr__(self) -> str:
        return f"<blocking {repr(self._writer)[1:]}"

    @property
    def result(self) -> DetachedSegment | None:
        """See ``dlog.bulk.DetachedSegmentWriter.result``."""
        return self._writer.result

    def append_many(
        self, payloads: Sequence[bytes | bytearray | memoryview], *, txids: Sequence[int] | None = None
    ) -> None:
        """See ``dlog.bulk.DetachedSegmentWriter.append_many``."""
        self._loop.run(self._writer.append_many, payloads, txids=txids)

    def give_up(self) -> None:
        """See ``dlog.bulk.DetachedSegmentWriter.give_up``."""
        self._loop.call_soon(self._writer.give_up)

    def close(self) -> None:
        """Write what is left, and set ``result``. Idempotent."""
        self._held.release()

    def __enter__(self) -> DetachedSegmentWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            self.give_up()
        close_after_block(self.close, exc)
