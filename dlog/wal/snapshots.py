"""The log of a write-ahead log's snapshots.

Inside: writing a snapshot, reading the last complete one.
Not inside: a snapshot's records (``snapshot_format``), when one is taken and what it lets the operations
forget (``write_ahead_log``).
Always: a snapshot is deleted only after a later one is complete; indexes increase in the log, also when a
service that has lost its log takes its last snapshot.

The transaction id of a snapshot's records is the index of the last operation in it. So the log itself
refuses a snapshot that is older than its last one, and only the log's one writer writes snapshots.
"""

from __future__ import annotations

from dlog.errors import LogNotFoundError, LogTruncatedError, TxidOutOfOrderError
from dlog.namespace_handle import Namespace
from dlog.wal.snapshot_format import Decoder, StateSnapshot, encode
from namespace.dlsn import DLSN

READ_ATTEMPTS_MAX = 5


async def read_last(namespace: Namespace, log: str) -> StateSnapshot | None:
    """The last complete snapshot in a log; None if there is none.

    Raises:
        ReplayError
        The errors of a reader.
    """
    for attempt in range(READ_ATTEMPTS_MAX):
        decoder = Decoder(log)
        try:
            async with namespace.open_reader(log, follow=False) as reader:
                while batch := await reader.read_batch(16):
                    for record in batch:
                        decoder.add(record.payload)
        except LogNotFoundError:
            return None
        except LogTruncatedError:
            # A service that has just lost the log completed a snapshot, and deleted the one before it.
            if attempt == READ_ATTEMPTS_MAX - 1:
                raise
            continue
        return decoder.found
    raise AssertionError("not reached")


async def write(namespace: Namespace, log: str, snapshot: StateSnapshot) -> bool:
    """Write a snapshot durably, then truncate those before it; False if the log has a newer one.

    If cancelled, the snapshot may be complete, or not; the one before it stays until it is.
    """
    async with namespace.open_writer(log, create=True) as writer:
        first: DLSN | None = None
        for payload in encode(snapshot):
            try:
                dlsn = await writer.append(payload, txid=snapshot.index)
            except TxidOutOfOrderError:
                return False
            first = first or dlsn
        await writer.flush()
        assert first is not None  # an empty list returned above
        # The writer began a segment of its own, so whole segments lie before the snapshot.
        await writer.truncate(first)
    return True
