"""The value of a log's hash chain at its end, from where the next writer continues.

Inside: reading backward to the last entry. Not inside: the chain (``format.hash_chain``), checking it
(``dlog.verify``).
"""

from __future__ import annotations

from dlog.errors import translated
from dlog.format.envelope import open_envelope
from dlog.format.hash_chain import ChainValue, chain_start, chain_value_in
from dlog.read.read_only_log import ReadOnlyLog
from namespace.dlsn import DLSN


async def chain_at_end(log: ReadOnlyLog) -> ChainValue:
    """The chain after the last entry of a log whose segments are all closed.

    A log that is empty, or whose last entry has no value because its writer kept no chain, begins a new
    chain. ``dlog verify`` reports records between two chains.

    Raises:
        CorruptLogError: The last entry does not decode.
        LogUnavailableError: It cannot be read now.
    """
    for segment in reversed(await log.segments()):
        with translated(log.name, f"looking for the hash chain in segment {segment.segment_seqno}"):
            async with await log.open(segment) as handle:
                last = handle.last_confirmed
                if last < 0:
                    continue
                (entry, *_) = await handle.read_payloads(last, last)
        with log.decoding(DLSN(segment.segment_seqno, last, 0)):
            body, start, stop = open_envelope(entry) if segment.enveloped else (entry, 0, len(entry))
            value = chain_value_in(body, start, stop)
        return value or chain_start(await log.origin())
    return chain_start(await log.origin())
