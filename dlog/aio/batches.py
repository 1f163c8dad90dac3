"""A writer of a detached segment for asyncio."""

from __future__ import annotations

from collections.abc import Sequence

from dlog.aio.bridge import Bridge
from dlog.bulk import detached
from dlog.bulk.plan import DetachedSegment
from ledger.payloads import as_payload


class DetachedSegmentWriter:
    """See ``dlog.bulk.DetachedSegmentWriter``. Made by ``Namespace.open_detached_segment``."""

    def __init__(self, bridge: Bridge, inner: detached.DetachedSegmentWriter) -> None:
        self._bridge, self._inner = bridge, inner
        self.log = inner.log

    def __repr__(self) -> str:
        return f"<asyncio {repr(self._inner)[1:]}"

    @property
    def result(self) -> DetachedSegment | None:
        """See ``dlog.bulk.DetachedSegmentWriter.result``."""
        return self._inner.result

    async def append_many(
        self, payloads: Sequence[bytes | bytearray | memoryview], *, txids: Sequence[int] | None = None
    ) -> None:
        """See ``dlog.bulk.DetachedSegmentWriter.append_many``."""
        ids = None if txids is None else list(txids)
        # Copied now: the caller may reuse its buffers during the wait.
        await self._bridge.run(self._inner.append_many, list(map(as_payload, payloads)), txids=ids)

    def give_up(self) -> None:
        """See ``dlog.bulk.DetachedSegmentWriter.give_up``."""
        self._inner.give_up()
