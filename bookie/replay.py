"""Reading the journal back after a restart.

Inside: walking one file (``JournalScan``) and all of them (``read_journal``); what is a torn tail and what
is damage; what each record tells the store (``apply_records``). Not inside: the store (``storage``).
Always: nothing is handed out of a batch before its trailer has been checked; damage that may hide an
acknowledged record stops the start; memory is bounded by one batch.

How a bad batch at offset P is judged, in a file with trailers:

- a later batch of the same journal id holds, and says that all below it was durable: P was
  acknowledged, so this is damage;
- the next file, or the note ``lastSynced``, says that this one had been synced further than P: damage;
- otherwise a power cut tore the last group, which nobody was told of: the journal ends at P.

Files of Apache bookies have no trailers: there a length of zero or a record cut short ends the file,
and a length that is no length stops the start, as it does in Apache's own reader.

Source: Journal.java (scanJournal, replay); reference on bookie storage 1.2, 4.4, 4.5, 8.4.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from bookie.disk import Disk
from bookie.errors import FormatError, JournalCorruptError, JournalMissingError
from bookie.journal_format import (
    FILE_HEADER_BYTES,
    FIRST_BATCH_OFFSET,
    LENGTH,
    PADDING,
    PADDING_HEADER,
    RECORD_BYTES_MAX,
    RECORD_HEADER,
    RECORD_IDS,
    TRAILER_BYTES,
    JournalMark,
    Predecessor,
    RecordKind,
    decode_file_trailer,
    decode_special,
    decode_trailer,
    has_header,
    journal_name,
    trailer_holds,
    trailer_mark,
)
from bookie.last_synced import LAST_SYNCED, read_last_synced
from bookie.ledgers import UNKNOWN_KEY, LedgerRecord

log = logging.getLogger(__name__)

_WINDOW_BYTES = 4 << 20
_BATCH_BYTES_MAX = 48 << 20  # the largest group this program writes is 2 x 16 MiB and one record
_UNCHECKED_BYTES_MAX = 1 << 20  # of Apache's records handed out at once

Read = Callable[[int, int], bytes]  # size, offset: shorter only at the end of the file


class _BadBatch(Exception):  # noqa: N818 - not an error yet: the scan judges it
    """Why the bytes at a batch's start are no batch."""


class JournalScan:
    """One file. Iterate ``batches``; afterwards ``end`` is the offset up to which it holds."""

    def __init__(self, read: Read, size_bytes: int, journal_id: int, *, skip_damaged: bool = False) -> None:
        """``FormatError`` if the file begins with what this program cannot read."""
        self._read = read
        self._size_bytes = size_bytes
        self._journal_id = journal_id
        self._skip_damaged = skip_damaged
        self._window, self._base = read(min(_WINDOW_BYTES, size_bytes), 0), 0
        self._has_header = has_header(self._window)
        self.predecessor: Predecessor | None = (
            decode_file_trailer(self._window[:FIRST_BATCH_OFFSET], journal_id) if self._has_header else None
        )
        self._has_trailers = self.predecessor is not None
        self.end = FILE_HEADER_BYTES if self._has_header else 0
        self.batch_start = self.end  # of the batch handed out last: its first record's length
        self.ending: str | None = None  # what was found at ``end`` instead of a batch; None: nothing

    def batches(self, start: int = 0) -> Iterator[Sequence[bytes]]:
        """The records, batch by batch. ``JournalCorruptError`` at damage, unless told to skip it."""
        if not self._has_header:
            return
        first = FIRST_BATCH_OFFSET if self._has_trailers else FILE_HEADER_BYTES
        self.end = max(start, first)
        while True:
            try:
                records, end = self._batch(self.end)
            except _BadBatch as bad:
                self._judge(str(bad))
                return
            if end == self.end:
                return
            self.batch_start, self.end = self.end, end
            if records:
                yield records

    def _batch(self, start: int) -> tuple[list[bytes], int]:
        """The records of the batch at ``start`` and its end, which is ``start`` at the end of the file."""
        records: list[bytes] = []
        at = start
        unpack_length = LENGTH.unpack_from
        while True:
            if at - start > _BATCH_BYTES_MAX and self._has_trailers:
                raise _BadBatch(f"no end within {_BATCH_BYTES_MAX} bytes")
            window, base = self._window, self._base
            relative = at - base
            if relative < 0 or relative + 4 > len(window):
                window, base, relative = *self._load(at, 4), 0
                if len(window) < 4:
                    return self._ended(start, records, at, "the file ends")
            (length,) = unpack_length(window, relative)
            if 0 < length <= RECORD_BYTES_MAX:
                stop = relative + 4 + length
                if stop > len(window):
                    window, base = self._load(at, 4 + length)
                    relative, stop = 0, 4 + length
                    if len(window) < stop:
                        return self._ended(start, records, at, "the file ends within a record")
                record = window[relative + 4 : stop]
                if length < RECORD_IDS.size:
                    raise _BadBatch(f"record of {length} bytes at {at}")
                records.append(record)
                at = base + stop
                if not self._has_trailers and at - start > _UNCHECKED_BYTES_MAX:
                    return records, at
            elif length == PADDING:
                return self._close_batch(start, records, at)
            elif length == 0:
                return self._ended(start, records, at, "zeros")
            else:
                raise _BadBatch(f"length {length} at {at}")

    def _ended(self, start: int, records: list[bytes], at: int, what: str) -> tuple[list[bytes], int]:
        if self._has_trailers:
            raise _BadBatch(f"{what} at {at}, before the batch's trailer")
        # Apache's reader hands out what it has read; a group of Apache's may lack its padding.
        return records, at if records else start

    def _close_batch(self, start: int, records: list[bytes], at: int) -> tuple[list[bytes], int]:
        frame, _ = self._load(at, PADDING_HEADER.size + TRAILER_BYTES)
        if len(frame) < PADDING_HEADER.size:
            return self._ended(start, records, at, "the file ends within padding")
        _, body_bytes = PADDING_HEADER.unpack_from(frame)
        if not 0 <= body_bytes <= RECORD_BYTES_MAX:
            raise _BadBatch(f"padding of {body_bytes} bytes at {at}")
        body = frame[PADDING_HEADER.size :][:body_bytes]
        end = at + PADDING_HEADER.size + body_bytes
        trailer = decode_trailer(body)
        if trailer is None:
            if self._has_trailers:
                raise _BadBatch(f"padding without a trailer at {at}")
            return records, end
        if trailer.journal_id != self._journal_id:
            raise _BadBatch(f"a batch of journal {trailer.journal_id:x}, from the file's last life")
        self._has_trailers = True
        if trailer.start != start or trailer.record_count != len(records):
            raise _BadBatch(
                f"the trailer at {at} tells of {trailer.record_count} records from {trailer.start} on,"
                f" found are {len(records)}"
            )
        batch = self._read(at + PADDING_HEADER.size - start, start)
        if not trailer_holds(trailer, batch, body):
            raise _BadBatch(f"the checksum at {at} does not hold")
        return records, end

    def _load(self, offset: int, size_bytes: int) -> tuple[bytes, int]:
        """Bytes from ``offset`` on, at least ``size_bytes`` unless the file ends; and ``offset``."""
        relative = offset - self._base
        if relative >= 0 and relative + size_bytes <= len(self._window):
            return self._window[relative : relative + size_bytes], offset
        self._window = self._read(max(_WINDOW_BYTES, size_bytes), offset)
        self._base = offset
        return self._window, offset

    def _judge(self, evidence: str) -> None:
        """A bad batch at ``end``: return if it is a torn tail, raise if it is damage."""
        self.ending = evidence
        where = f"{journal_name(self._journal_id)} at offset {self.end}"
        if not self._has_trailers:
            if not self._skip_damaged:
                raise JournalCorruptError(
                    f"{where}: {evidence}, and a file without trailers cannot tell a torn tail from damage."
                    " If other replicas hold this bookie's entries, start once with"
                    " skipReplayJournalInvalidRecord=true, which abandons the rest of this file"
                )
            log.error("%s: %s; the rest of the file is abandoned as configured", where, evidence)
            return
        later = self._later_durable_batch()
        if later is None:
            log.info("%s: the journal ends here (%s)", where, evidence)
            return
        message = f"{where}: {evidence}, but a later batch at {later} shows that this one had been durable"
        if not self._skip_damaged:
            raise JournalCorruptError(
                f"{message}. The disk has damaged acknowledged entries: let other replicas recover them, then"
                " start once with skipReplayJournalInvalidRecord=true, which abandons the rest of this file"
            )
        log.error("%s; the rest of the file is abandoned as configured", message)

    def _later_durable_batch(self) -> int | None:
        """Where a sound batch begins that was written when everything before it was durable."""
        pattern = trailer_mark(self._journal_id)
        offset = self.end
        while offset < self._size_bytes:
            data = self._read(_WINDOW_BYTES, offset)
            at = data.find(pattern)
            while at >= 0:
                if (start := self._sound_batch(offset + at)) is not None:
                    return start
                at = data.find(pattern, at + 1)
            if len(data) <= len(pattern):
                break
            offset += len(data) - len(pattern) + 1
        return None

    def _sound_batch(self, trailer_offset: int) -> int | None:
        body = self._read(TRAILER_BYTES, trailer_offset)
        trailer = decode_trailer(body)
        if trailer is None or not self.end < trailer.start < trailer_offset:
            return None
        if trailer.durable_below <= self.end or trailer_offset - trailer.start > _BATCH_BYTES_MAX:
            return None
        batch = self._read(trailer_offset - trailer.start, trailer.start)
        return trailer.start if trailer_holds(trailer, batch, body) else None


@attrs.frozen
class JournalEnd:
    """Where the replayed journal ended."""

    mark: JournalMark
    last_id: int  # greatest id of any file present; 0: none


class ReplayTarget(Protocol):
    """What replay asks of the store; ``Storage`` is one."""

    def ledger(self, ledger_id: int) -> LedgerRecord | None: ...
    def create_ledger(self, ledger_id: int, master_key: bytes) -> LedgerRecord: ...
    def stage_entry(self, ledger: LedgerRecord, entry_id: int, lac: int, body: bytes) -> None: ...
    def stage_fence(self, ledger: LedgerRecord) -> None: ...
    def stage_explicit_lac(self, ledger: LedgerRecord, body: bytes) -> None: ...


def apply_records(target: ReplayTarget, records: Iterable[bytes]) -> None:
    """Tell the store what journal records say. Applying them again changes nothing."""
    for record in records:
        ledger_id, entry_id = RECORD_IDS.unpack_from(record)
        if ledger_id < 0:
            log.warning("journal: a record of ledger %d is skipped", ledger_id)
        elif entry_id < 0:
            _apply_special(target, ledger_id, record)
        else:
            lac = RECORD_HEADER.unpack_from(record)[2] if len(record) >= RECORD_HEADER.size else -1
            target.stage_entry(_replayed_ledger(target, ledger_id), entry_id, lac, record)


def _apply_special(target: ReplayTarget, ledger_id: int, record: bytes) -> None:
    kind, content = decode_special(record)
    if kind is RecordKind.KEY:
        known = target.ledger(ledger_id)
        if known is None or known.master_key == UNKNOWN_KEY:
            target.create_ledger(ledger_id, content)
    elif kind is RecordKind.FENCE:
        target.stage_fence(_replayed_ledger(target, ledger_id))
    elif kind is RecordKind.EXPLICIT_LAC and len(content) >= RECORD_IDS.size:
        target.stage_explicit_lac(_replayed_ledger(target, ledger_id), content)
    else:
        log.warning("journal: a record of ledger %d of unknown kind is skipped", ledger_id)


def _replayed_ledger(target: ReplayTarget, ledger_id: int) -> LedgerRecord:
    """The ledger of a replayed record; one whose key was lost is fenced, since its fence may be too.

    Skipping the record instead, as Apache does, turns lost ledger data into lost entries. A ledger that
    was deleted comes back fenced, and garbage collection deletes it again.
    """
    record = target.ledger(ledger_id)
    if record is None:
        record = target.create_ledger(ledger_id, UNKNOWN_KEY)
        target.stage_fence(record)
    return record


async def read_journal(
    disk: Disk,
    directory: Path,
    journal_ids: Sequence[int],
    mark: JournalMark,
    apply: Callable[[Sequence[bytes]], Awaitable[None]],
    *,
    skip_damaged: bool = False,
) -> JournalEnd:
    """Hand all records from the mark on to ``apply``, in order; return where the journal ends.

    ``JournalMissingError`` and ``JournalCorruptError`` say what to do; nothing has been changed then.
    """
    last_id = journal_ids[-1] if journal_ids else 0
    wanted = [journal_id for journal_id in journal_ids if journal_id >= mark.journal_id]
    if mark.journal_id > 0 and (not wanted or wanted[0] != mark.journal_id):
        raise JournalMissingError(
            f"{directory}: lastMark names {mark}, but {journal_name(mark.journal_id)} is not there; present:"
            f" {', '.join(map(journal_name, journal_ids)) or 'no journal file'}. Entries acknowledged after"
            " the mark are in that file: bring it back, or check that the journal directory is the right one"
            " and mounted. If it is lost, give this bookie's disks up and recover its ledgers from the others"
        )
    end = mark
    for journal_id in wanted:
        path = directory / journal_name(journal_id)
        file = await disk.run(disk.open, path)
        try:
            size = await disk.run(file.size)
            try:
                scan = await disk.run(_open_scan, file.pread, size, journal_id, skip_damaged)
                _check_predecessor(path, scan.predecessor, end, wanted, skip_damaged=skip_damaged)
                batches = scan.batches(mark.offset if journal_id == mark.journal_id else 0)
                while (records := await disk.run(_some_batches, batches)) is not None:
                    await apply(records)
                end = JournalMark(journal_id, scan.end)
            except FormatError as exc:
                if not skip_damaged:
                    raise JournalCorruptError(
                        f"{path}: {exc}. If it cannot be restored, let other replicas recover this bookie's"
                        " entries, then start once with skipReplayJournalInvalidRecord=true, which abandons"
                        " this file"
                    ) from exc
                log.error("%s: %s; the file is abandoned as configured", path, exc)
                end = JournalMark(journal_id, 0)
        finally:
            file.close()
    synced = await disk.run(read_last_synced, disk, directory)
    _check_last_synced(directory, synced, end, skip_damaged=skip_damaged)
    return JournalEnd(end, last_id)


async def follows_none(disk: Disk, directory: Path, journal_id: int) -> bool:
    """Whether the file says itself that none was before it when it was made."""
    file = await disk.run(disk.open, directory / journal_name(journal_id))
    try:
        start_of_file = await disk.run(file.pread, FIRST_BATCH_OFFSET, 0)
    finally:
        file.close()
    return decode_file_trailer(start_of_file, journal_id) == Predecessor(0, 0)


def _check_last_synced(directory: Path, synced: JournalMark, end: JournalMark, *, skip_damaged: bool) -> None:
    """The files must reach as far as was noted. A file that holds no batch yet may be lost unnoticed."""
    if synced <= end or synced.offset <= FIRST_BATCH_OFFSET:
        return
    path = directory / journal_name(synced.journal_id)
    if synced.journal_id != end.journal_id:
        found = f"but {path.name} is not there"
    else:
        found = f"but {path.name} can be read up to offset {end.offset} only"
    message = f"{directory}: the journal was durable up to {synced} according to {LAST_SYNCED}, {found}"
    if not skip_damaged:
        raise JournalCorruptError(
            f"{message}. Acknowledged entries are lost here: bring the file back, or let other replicas"
            " recover them, then start once with skipReplayJournalInvalidRecord=true"
        )
    log.error("%s; what is missing is abandoned as configured", message)


def _open_scan(read: Read, size_bytes: int, journal_id: int, skip_damaged: bool) -> JournalScan:
    return JournalScan(read, size_bytes, journal_id, skip_damaged=skip_damaged)


def _some_batches(batches: Iterator[Sequence[bytes]]) -> Sequence[bytes] | None:
    """Up to a window of records, so that a hop between threads is paid for many small batches."""
    records: list[bytes] = []
    size_bytes = 0
    for batch in batches:
        records += batch
        size_bytes += sum(map(len, batch))
        if size_bytes >= _WINDOW_BYTES:
            break
    return records or None


def _check_predecessor(
    path: Path, said: Predecessor | None, end: JournalMark, wanted: Sequence[int], *, skip_damaged: bool
) -> None:
    """What a file says of the one before it must agree with what was found there."""
    if said is None or said.journal_id == 0 or said.journal_id < wanted[0]:
        return
    if said.journal_id not in wanted:
        raise JournalMissingError(
            f"{path} follows {journal_name(said.journal_id)}, which is not there. Entries acknowledged in it"
            " are not in ledger storage yet: bring the file back, or give this bookie's disks up"
        )
    if said.journal_id == end.journal_id and said.end > end.offset and not skip_damaged:
        raise JournalCorruptError(
            f"{path.with_name(journal_name(end.journal_id))}: can be read up to offset {end.offset}, but was"
            f" durable up to {said.end}. The disk has damaged acknowledged entries: recover them from"
            " other replicas, then start once with skipReplayJournalInvalidRecord=true"
        )
