"""Which rows the driver writes together to one segment. Pure.

Always: in each log the segments of a batch follow each other without a transaction id that goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import attrs

from spark_integration.errors import RowFormatError
from spark_integration.sink.contents import Block

if TYPE_CHECKING:
    from spark_integration.sink.parts import Part


@attrs.frozen
class _Span:
    """The transaction ids of one task in one stream."""

    first: int
    last: int
    task: int
    blocks: Sequence[Block]  # none: the task wrote a segment


def grouped(parts: Sequence[Part], *, by_txid: bool) -> list[tuple[str, list[Block]]]:
    """The rows for each segment that the driver writes, with its stream.

    Without transaction ids of their own, all rows of a stream. With them, only those that no segment of a
    task comes between.

    Raises:
        RowFormatError: The ids of two tasks overlap in a stream.
    """
    if not by_txid:
        rows: dict[str, list[Block]] = {}
        for part in parts:
            for stream, blocks in part.rows.items():
                rows.setdefault(stream, []).extend(blocks)
        return list(rows.items())
    groups: list[tuple[str, list[Block]]] = []
    for stream, spans in _spans(parts).items():
        for before, after in pairwise(spans):
            if after.first < before.last:
                raise RowFormatError(
                    f"stream {stream!r}: one task has rows with the transaction ids {before.first} to"
                    f" {before.last}, another one {after.first} to {after.last}; in a log they must not"
                    " decrease. Give each task a range of them, as with .repartitionByRange('stream',"
                    " 'txid').sortWithinPartitions('txid'), or use one task with .coalesce(1). Nothing was"
                    " written"
                )
        for is_ours, neighbours in groupby(spans, lambda span: bool(span.blocks)):
            if is_ours:
                groups.append((stream, [block for span in neighbours for block in span.blocks]))
    return groups


def _spans(parts: Sequence[Part]) -> dict[str, list[_Span]]:
    """The spans of each stream, in the order of their transaction ids."""
    spans: dict[str, list[_Span]] = {}
    for task, part in enumerate(parts):
        for stream, blocks in part.rows.items():
            first, last = blocks[0].txids, blocks[-1].txids
            assert first is not None  # blocks have ids if the caller orders by ids
            assert last is not None  # the same
            spans.setdefault(stream, []).append(_Span(first[0], last[-1], task, blocks))
        for segment in part.segments:
            span = _Span(segment.txid, segment.last_txid, task, ())
            spans.setdefault(segment.log, []).append(span)
    return {
        stream: sorted(found, key=lambda span: (span.first, span.last, span.task))
        for stream, found in spans.items()
    }
