"""A writer of a detached segment without ``async``."""

from __future__ import annotations

from types import TracebackType

from dlog.bulk.detached import DetachedSegmentWriter as TrioWriter
from dlog.bulk.plan import DetachedSegment
from ledger.payloads import as_payloads
from ledger.runtime.tasks.blocking_face import HeldFace, called, forwarded
from ledger.runtime.tasks.face import Shown, attribute, listed, shown


class DetachedSegmentWriter(HeldFace[TrioWriter]):
    """See ``dlog.bulk.DetachedSegmentWriter``. Made by ``Namespace.batches.open_segment``.

    Closed by ``close`` or the end of a ``with`` block. If the block raises, the segment is given up.
    """

    log: Shown[str] = attribute("log", "The log's name.")
    result: Shown[DetachedSegment | None] = shown(TrioWriter.result)

    append_many = forwarded(
        TrioWriter.append_many, payloads=as_payloads, txids=listed, keys=listed, headers=listed
    )
    give_up = called(TrioWriter.give_up)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            self.give_up()
        super().__exit__(kind, exc, trace)
