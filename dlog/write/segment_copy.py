"""Copying one segment into another ledger, and comparing the copy with the original.

Inside: one copy, which may begin while the segment is still being written. Not inside: which segment is
copied when, the node that names it (its callers).
Always: entry n of the original is entry n of the copy, with the same bytes, so each record keeps its
position; ``finish`` returns only after every entry of the copy was read back, its records were counted, and
the digests of both ledgers were equal.

Source: our own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from dlog.errors import ConfigError, CorruptLogError, EntryFormatError
from dlog.format.compression import CODEC_MASK, Compression
from dlog.format.envelope import ENVELOPE_HEADER, ENVELOPE_HEADER_BYTES, ENVELOPE_VERSION
from dlog.read.entries import open_segment_ledger
from dlog.read.segment_reader import SegmentReader, last_record_of
from ledger.client import LedgerClient
from ledger.handle import ReadHandle, WriteHandle
from namespace.dlsn import DLSN
from namespace.segments.segment import LogSegment

READ_BYTES = 1024 * 1024  # of one read
_LENGTH_BYTES = 8


class SegmentCopy:
    """The copy of one segment.

    Args:
        handle: The new, empty ledger at the target; closed by ``finish``, else abandoned by the caller.
        shared_with_java: Refuse entries that Apache's readers cannot read.
        on_copied: Called with the bytes of each entry copied.
    """

    def __init__(
        self,
        log: str,
        segment: LogSegment,
        client: LedgerClient,
        handle: WriteHandle,
        *,
        shared_with_java: bool,
        on_copied: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.log, self.segment, self.handle = log, segment, handle
        self.next_entry_id = 0  # of the original
        self._client, self._shared_with_java, self._on_copied = client, shared_with_java, on_copied
        self._read_digest, self._stored_digest = hashlib.sha256(), hashlib.sha256()
        self._reader = SegmentReader(segment.segment_seqno, 1, enveloped=segment.enveloped)
        self._last_record: tuple[int, int, int, int] | None = None  # of the copy, as read back
        self._last_position: DLSN | None = None

    async def copy_up_to(self, original: ReadHandle, last: int) -> None:
        """Copy the entries up to ``last``; return when they are durable at the target.

        Raises:
            ConfigError: Apache's programs read the target, and could not read an entry.
            LedgerError: From either ledger; the caller translates it.
        """
        while self.next_entry_id <= last:
            entries = await original.read_payloads(self.next_entry_id, last, size_bytes_max=READ_BYTES)
            for entry in entries:
                self._check_shared(entry)
                await self.handle.wait_capacity()
                entry_id = self.handle.submit(entry)
                if entry_id != self.next_entry_id:  # this is the ledger's only writer
                    raise AssertionError(f"entry {entry_id} was copied to, not {self.next_entry_id}")
                _add(self._read_digest, entry)
                self.next_entry_id += 1
                self._on_copied(len(entry))
        if last >= 0:
            await self.handle.wait_confirmed(last)

    async def check(self) -> None:
        """Read back what the copy shows and was not read back yet.

        Raises:
            CorruptLogError: The copy does not decode.
            LedgerError: The caller translates it.
        """
        opened = await open_segment_ledger(self._client, self.handle.ledger_id, None, recover=False)
        async with opened as copy:
            last = min(copy.last_confirmed, self.next_entry_id - 1)
            self._reader.confirmed(last, closed=False)
            while self._reader.next_entry_id <= last:
                first = self._reader.next_entry_id
                for entry in await copy.read_payloads(first, last, size_bytes_max=READ_BYTES):
                    self._check_entry(entry)

    def _check_entry(self, entry: bytes) -> None:
        entry_id = self._reader.next_entry_id
        position = DLSN(self.segment.segment_seqno, entry_id, 0)
        try:
            self._reader.decode_all([entry])
            last = last_record_of(entry, enveloped=self.segment.enveloped)
        except EntryFormatError as exc:
            raise CorruptLogError(self.log, position, f"its copy does not decode: {exc}") from None
        _add(self._stored_digest, entry)
        if last is not None:
            self._last_record, self._last_position = last, DLSN(self.segment.segment_seqno, entry_id, last[3])

    async def finish(self, original: ReadHandle, completed: LogSegment) -> None:
        """Copy the rest of a closed ledger, close the copy, and compare both completely.

        Args:
            completed: The segment as its writer or a recovery completed it.

        Raises:
            CorruptLogError: The copy differs from the original, or from what its metadata say.
            ConfigError, LedgerError: As ``copy_up_to``.
        """
        assert original.is_closed, original  # the caller opened it with recovery
        # the caller matched them
        assert completed.ledger_id == self.segment.ledger_id, (completed, self.segment)
        last = original.last_confirmed
        await self.copy_up_to(original, last)
        await self.handle.close()
        await self.check()
        position = DLSN(completed.segment_seqno, last, 0)
        if self._reader.next_entry_id != last + 1 or self.handle.lac != last:
            raise CorruptLogError(
                self.log,
                position,
                f"the original has {last + 1} entries, the copy {self._reader.next_entry_id}",
            )
        if self._read_digest.digest() != self._stored_digest.digest():
            raise CorruptLogError(self.log, position, "the digests of original and copy differ")
        count = 0 if self._last_record is None else self._last_record[1]
        if count != completed.record_count:
            raise CorruptLogError(
                self.log, position, f"the copy has {count} records, its metadata say {completed.record_count}"
            )
        if completed.last_entry_id >= 0 and (
            self._last_position is None or self._last_position < completed.last_dlsn
        ):
            raise CorruptLogError(
                self.log, position, f"the copy ends before the last record, {completed.last_dlsn}"
            )

    def _check_shared(self, entry: bytes) -> None:
        """Refuse an entry that Apache's readers cannot read, if they read the target."""
        if not self._shared_with_java or not self.segment.enveloped or len(entry) < ENVELOPE_HEADER_BYTES:
            return
        version, flags, _, _ = ENVELOPE_HEADER.unpack_from(entry)
        if version != ENVELOPE_VERSION:
            why = "holds a part of a large record, which they refuse"
        elif flags & CODEC_MASK == Compression.SNAPPY.value:
            why = "is compressed with Snappy, which they would take for uncompressed data"
        else:
            return
        raise ConfigError(
            f"log {self.log!r}: Apache's programs read the target, and entry {self.next_entry_id} of segment"
            f" {self.segment.segment_seqno} {why}. If none ever will, copy it with shared_with_java=False"
            " (`--not-shared-with-java`)"
        )


def _add(digest: hashlib._Hash, entry: bytes) -> None:
    digest.update(len(entry).to_bytes(_LENGTH_BYTES, "big"))
    digest.update(entry)
