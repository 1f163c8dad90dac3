"""Questions about a log that several reads answer.

Inside: a log's description. Not inside: readers (``log_reader``), what one read answers
(``namespace_handle``).
Always: nothing is changed; each call may be cancelled at any time.
"""

from __future__ import annotations

from dlog.context import NamespaceContext
from dlog.description import LogDescription, SegmentDescription
from dlog.errors import translated
from dlog.format.record import TXID_MAX
from dlog.write.opening import lock_owner
from namespace.owner_node import read_owner
from namespace.policy import Right
from namespace.segments.truncation import first_left


async def describe_log(context: NamespaceContext, name: str) -> LogDescription:
    """See ``Namespace.describe_log``."""
    log = context.log(await context.permitted(name, Right.READ))
    segments = await log.segments()
    last = await log.last_record(segments)
    count = sum(segment.record_count for segment in segments)
    if last is not None:
        # Count the visible records of segments in progress: the last one has its number in the segment.
        newest = next(each for each in segments if each.segment_seqno == last.dlsn.segment_seqno)
        if newest.in_progress:
            count += last.sequence_id
            older = [each for each in segments if each.segment_seqno < newest.segment_seqno]
            if older and older[-1].in_progress:
                count += await log.visible_count(older[-1])
    with translated(name, "looking for its writer"):
        writer = await lock_owner(context.nodes(log.name))
        owner = await read_owner(context.nodes(log.name))
    return LogDescription(
        name=log.name,
        first_dlsn=first_left(segments),
        last_dlsn=None if last is None else last.dlsn,
        last_txid=None if last is None else last.txid,
        record_count=count,
        is_sealed=any(each.last_txid == TXID_MAX for each in segments),
        writer=writer,
        forwarders=None if owner is None else owner.forwarders,
        segments=tuple(SegmentDescription.of(each) for each in segments),
    )
