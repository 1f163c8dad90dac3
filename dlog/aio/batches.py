"""A writer of a detached segment for asyncio."""

from __future__ import annotations

from dlog.aio.face import Face, called, forwarded
from dlog.bulk.detached import DetachedSegmentWriter as TrioWriter
from dlog.bulk.plan import DetachedSegment
from ledger.payloads import as_payloads
from ledger.runtime.tasks.face import Shown, attribute, listed, shown


class DetachedSegmentWriter(Face[TrioWriter]):
    """See ``dlog.bulk.DetachedSegmentWriter``. Made by ``Namespace.batches.open_segment``."""

    log: Shown[str] = attribute("log", "The log's name.")
    result: Shown[DetachedSegment | None] = shown(TrioWriter.result)

    append_many = forwarded(
        TrioWriter.append_many, payloads=as_payloads, txids=listed, keys=listed, headers=listed
    )
    give_up = called(TrioWriter.give_up)
