"""Reading the journal back after a restart.

Inside: reading one file (``JournalScan``) and all files (``read_journal``); telling a torn tail from damage;
applying records to the storage (``apply_records``). Not inside: the storage (``storage``).
Always: no record of a group is applied before its trailer was checked; damage that may affect an acknowledged
record stops the start; memory is bounded by one group.

If the bytes at offset P of a file with trailers are no valid group, these rules decide:

- a later group of the same journal id is valid, and says that everything below it was durable: P was
  acknowledged, so this is damage;
- the next file, or the note ``lastSynced``, says that this file was synced further than P: damage;
- otherwise a power cut tore the last group, which was not acknowledged: the journal ends at P.

Files of Apache bookies have no trailers. There a length of zero or an incomplete record ends the file, and an
invalid length stops the start, as in Apache's own reader.

Source: Journal.java (scanJournal, replay); docs/storage-format.md 2.8, 2.9.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from bookie.digest_checker import checksum_type
from bookie.disk.disk import Disk
from bookie.errors import FormatError, JournalCorruptError, JournalMissingError
from bookie.journal.flushed import replay_start
from bookie.journal.format import (
    FILE_HEADER_BYTES,
    FIRST_GROUP_OFFSET,
    PADDING,
    PADDING_HEADER,
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
    trailer_mark,
    trailer_matches,
)
from bookie.journal.group_commit import WriteBatch
from bookie.journal.last_synced import LAST_SYNCED, read_last_synced
from bookie.ledger_record import UNKNOWN_KEY, LedgerRecord
from bookie.length_prefixes import LENGTH
from bookie.limits import RECORD_BYTES_MAX
from ledger.runtime.log_lines import get_logger

log = get_logger(__name__)

_WINDOW_BYTES = 4 << 20
PIECE_BYTES = 256 << 10  # applied at once, or one group
_GROUP_BYTES_MAX = 48 << 20  # the largest group this program writes is 2 x 16 MiB and one record
_UNCHECKED_BYTES_MAX = 1 << 20  # of Apache's records in one step of the iteration

OnDamage = Callable[[str], None]  # the evidence
Read = Callable[[int, int], bytes]  # size, offset: shorter only at the end of the file


class _InvalidGroup(Exception):  # noqa: N818 - not an error yet: a torn tail is none
    """The reason why the bytes at an offset are no valid group."""


class JournalScan:
    """One file. Iterate ``groups``. After that ``end`` is the offset up to which the file is valid."""

    def __init__(
        self,
        read: Read,
        size_bytes: int,
        journal_id: int,
        *,
        skip_damaged: OnDamage | None = None,
        durable_bytes: int = 0,
    ) -> None:
        """Read the header.

        Args:
            skip_damaged: Called with the evidence of each damage, which is left out;
                None: damage is an error.
            durable_bytes: Up to where the file was synced, as far as known.

        Raises:
            FormatError: This program cannot read the file's header.
        """
        self._durable_bytes = durable_bytes
        self._read = read
        self._size_bytes = size_bytes
        self._journal_id = journal_id
        self._skip_damaged = skip_damaged
        self._window, self._base = read(min(_WINDOW_BYTES, size_bytes), 0), 0
        self._has_header = has_header(self._window)
        self.predecessor: Predecessor | None = (
            decode_file_trailer(self._window[:FIRST_GROUP_OFFSET], journal_id) if self._has_header else None
        )
        self._has_trailers = self.predecessor is not None
        self.end = FILE_HEADER_BYTES if self._has_header else 0
        self.group_start = self.end  # of the last group: the offset of its first record's length
        self.ending: str | None = None  # why no group begins at ``end``; None: the file ends there

    def groups(self, start: int = 0) -> Iterator[Sequence[bytes]]:
        """The records, group by group. ``JournalCorruptError`` at damage, unless ``skip_damaged`` is set.

        Of a damaged group come the entries whose own checksum holds.
        """
        if not self._has_header:
            return
        first = FIRST_GROUP_OFFSET if self._has_trailers else FILE_HEADER_BYTES
        self.end = max(start, first)
        while True:
            try:
                records, end = self._group(self.end)
            except _InvalidGroup as invalid:
                stop, resume = self._check_torn(str(invalid))
                if kept := self._intact_entries(self.end, stop):
                    yield kept
                if resume is None:
                    return
                self.end = resume
                continue
            if end == self.end:
                return
            self.group_start, self.end = self.end, end
            if records:
                yield records

    def _group(self, start: int) -> tuple[list[bytes], int]:
        """The records of the group at ``start``, and its end; no records and ``start`` at the file's end."""
        records: list[bytes] = []
        at = start
        unpack_length = LENGTH.unpack_from
        while True:
            if at - start > _GROUP_BYTES_MAX and self._has_trailers:
                raise _InvalidGroup(f"no end within {_GROUP_BYTES_MAX} bytes")
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
                    raise _InvalidGroup(f"record of {length} bytes at {at}")
                records.append(record)
                at = base + stop
                if not self._has_trailers and at - start > _UNCHECKED_BYTES_MAX:
                    return records, at
            elif length == PADDING:
                return self._close_group(start, records, at)
            elif length == 0:
                return self._ended(start, records, at, "zeros")
            else:
                raise _InvalidGroup(f"length {length} at {at}")

    def _ended(self, start: int, records: list[bytes], at: int, what: str) -> tuple[list[bytes], int]:
        if self._has_trailers:
            raise _InvalidGroup(f"{what} at {at}, before the group's trailer")
        # As Apache's reader does: a group of Apache's may lack its padding.
        return records, at if records else start

    def _close_group(self, start: int, records: list[bytes], at: int) -> tuple[list[bytes], int]:
        frame, _ = self._load(at, PADDING_HEADER.size + TRAILER_BYTES)
        if len(frame) < PADDING_HEADER.size:
            return self._ended(start, records, at, "the file ends within padding")
        _, body_bytes = PADDING_HEADER.unpack_from(frame)
        if not 0 <= body_bytes <= RECORD_BYTES_MAX:
            raise _InvalidGroup(f"padding of {body_bytes} bytes at {at}")
        body = frame[PADDING_HEADER.size :][:body_bytes]
        end = at + PADDING_HEADER.size + body_bytes
        trailer = decode_trailer(body)
        if trailer is None:
            if self._has_trailers:
                raise _InvalidGroup(f"padding without a trailer at {at}")
            return records, end
        if trailer.journal_id != self._journal_id:
            raise _InvalidGroup(
                f"a group of journal {trailer.journal_id:x}, from before the file was recycled"
            )
        self._has_trailers = True
        if trailer.start != start or trailer.record_count != len(records):
            raise _InvalidGroup(
                f"the trailer at {at} counts {trailer.record_count} records from {trailer.start} on, but"
                f" there are {len(records)}"
            )
        group = self._read(at + PADDING_HEADER.size - start, start)
        if not trailer_matches(trailer, group, body):
            raise _InvalidGroup(f"the checksum at {at} does not match")
        return records, end

    def _load(self, offset: int, size_bytes: int) -> tuple[bytes, int]:
        """Bytes from ``offset`` on, at least ``size_bytes`` unless the file ends; and their offset."""
        relative = offset - self._base
        if relative >= 0 and relative + size_bytes <= len(self._window):
            return self._window[relative : relative + size_bytes], offset
        self._window = self._read(max(_WINDOW_BYTES, size_bytes), offset)
        self._base = offset
        return self._window, offset

    def _check_torn(self, evidence: str) -> tuple[int, int | None]:
        """No valid group begins at ``end``: return if it is a torn tail, raise if it is damage.

        Returns:
            Up to where the damage reaches, and the group after it; None: there is none.
        """
        self.ending = evidence
        where = f"{journal_name(self._journal_id)} at offset {self.end}"
        if not self._has_trailers:
            if self._skip_damaged is None:
                raise JournalCorruptError(
                    f"{where}: {evidence}. Without trailers, a torn tail looks like damage",
                    "If other replicas have this bookie's entries, start once with"
                    " skipReplayJournalInvalidRecord=true, which leaves out the rest of this file",
                )
            self._skip_damaged(f"{where}: {evidence}; the rest of the file is left out")
            return self.end, None
        later = self._later_group(durably=True)
        if later is None:
            if self._skip_damaged is not None and self._durable_bytes > self.end:
                return self._durable_bytes, None  # the caller has the evidence
            log.info("%s: the journal ends here (%s)", where, evidence)
            return self.end, None
        message = f"{where}: {evidence}, but a later group at {later} shows that this one was durable"
        if self._skip_damaged is None:
            raise JournalCorruptError(
                f"{message}. The disk has damaged acknowledged entries",
                "Let other replicas recover them, then start once with skipReplayJournalInvalidRecord=true,"
                " which leaves out what is damaged",
            )
        later = self._later_group(durably=False) or later
        self._skip_damaged(f"{message}; {later - self.end} bytes are damaged")
        return later, later

    def _intact_entries(self, start: int, stop: int) -> list[bytes]:
        """Entries in a damaged range whose checksum holds, as far as lengths lead from one to the next."""
        kept: list[bytes] = []
        at, stop = start, min(stop, self._size_bytes)
        while at + LENGTH.size <= stop:
            (length,) = LENGTH.unpack(self._read(LENGTH.size, at))
            at += LENGTH.size
            if length == PADDING and at + LENGTH.size <= stop:
                (length,) = LENGTH.unpack(self._read(LENGTH.size, at))
                at += LENGTH.size
                if not 0 <= length <= stop - at:
                    break
            elif RECORD_IDS.size <= length <= min(stop - at, RECORD_BYTES_MAX):
                record = self._read(length, at)
                if RECORD_IDS.unpack_from(record)[1] >= 0 and checksum_type(record) is not None:
                    kept.append(record)
            else:
                break
            at += length
        return kept

    def _later_group(self, *, durably: bool) -> int | None:
        """The start of a later valid group; ``durably``: one written when all from ``end`` on was durable."""
        pattern = trailer_mark(self._journal_id)
        offset = self.end
        while offset < self._size_bytes:
            data = self._read(_WINDOW_BYTES, offset)
            at = data.find(pattern)
            while at >= 0:
                if (start := self._valid_group(offset + at, durably=durably)) is not None:
                    return start
                at = data.find(pattern, at + 1)
            if len(data) <= len(pattern):
                break
            offset += len(data) - len(pattern) + 1
        return None

    def _valid_group(self, trailer_offset: int, *, durably: bool) -> int | None:
        body = self._read(TRAILER_BYTES, trailer_offset)
        trailer = decode_trailer(body)
        if trailer is None or not self.end < trailer.start < trailer_offset:
            return None
        if durably and trailer.durable_below <= self.end:
            return None
        if trailer_offset - trailer.start > _GROUP_BYTES_MAX:
            return None
        group = self._read(trailer_offset - trailer.start, trailer.start)
        return trailer.start if trailer_matches(trailer, group, body) else None


@attrs.frozen
class JournalEnd:
    """The end of a replayed journal."""

    mark: JournalMark
    last_id: int  # greatest id of any file present; 0: none


class ReplayTarget(Protocol):
    """The storage as replay uses it. ``Storage`` implements it."""

    def ledger(self, ledger_id: int) -> LedgerRecord | None: ...
    def create_ledger(self, batch: WriteBatch, ledger_id: int, master_key: bytes) -> LedgerRecord: ...
    def stage_entry(
        self, batch: WriteBatch, ledger: LedgerRecord, entry_id: int, lac: int, body: bytes
    ) -> None: ...
    def stage_fence(self, batch: WriteBatch, ledger: LedgerRecord) -> None: ...
    def stage_explicit_lac(self, batch: WriteBatch, ledger: LedgerRecord, body: bytes) -> None: ...


def apply_records(target: ReplayTarget, batch: WriteBatch, records: Iterable[bytes]) -> None:
    """Stage the content of journal records. Applying them again changes nothing.

    The caller drops the batch: its records are in the journal already.
    """
    for record in records:
        ledger_id, entry_id = RECORD_IDS.unpack_from(record)
        if ledger_id < 0:
            log.warning("journal: a record of ledger %d is skipped", ledger_id)
        elif entry_id < 0:
            _apply_special(target, batch, ledger_id, record)
        else:
            lac = RECORD_HEADER.unpack_from(record)[2] if len(record) >= RECORD_HEADER.size else -1
            target.stage_entry(batch, _replayed_ledger(target, batch, ledger_id), entry_id, lac, record)


def _apply_special(target: ReplayTarget, batch: WriteBatch, ledger_id: int, record: bytes) -> None:
    kind, content = decode_special(record)
    if kind is RecordKind.KEY:
        known = target.ledger(ledger_id)
        if known is None or known.master_key == UNKNOWN_KEY:
            target.create_ledger(batch, ledger_id, content)
    elif kind is RecordKind.FENCE:
        target.stage_fence(batch, _replayed_ledger(target, batch, ledger_id))
    elif kind is RecordKind.EXPLICIT_LAC and len(content) >= RECORD_IDS.size:
        target.stage_explicit_lac(batch, _replayed_ledger(target, batch, ledger_id), content)
    else:
        log.warning("journal: a record of ledger %d of unknown kind is skipped", ledger_id)


def _replayed_ledger(target: ReplayTarget, batch: WriteBatch, ledger_id: int) -> LedgerRecord:
    """The ledger of a replayed record. A ledger whose key is lost is fenced, since its fence may be lost too.

    Apache skips the record, so that lost ledger data become lost entries. A deleted ledger comes back fenced,
    and garbage collection deletes it again.
    """
    record = target.ledger(ledger_id)
    if record is None:
        record = target.create_ledger(batch, ledger_id, UNKNOWN_KEY)
        target.stage_fence(batch, record)
    return record


async def read_journal(
    disk: Disk,
    directory: Path,
    journal_ids: Sequence[int],
    mark: JournalMark,
    apply: Callable[[Sequence[bytes], JournalMark], Awaitable[None]],
    *,
    is_closed: bool = False,
    skip_damaged: OnDamage | None = None,
) -> JournalEnd:
    """Call ``apply`` with all records from the mark on, in order, and their end. Return where it ends.

    Args:
        is_closed: The journal was closed in order at the mark. Then no record is after it, and its file may
            be missing or damaged.
        skip_damaged: Called with the evidence of each damage. Then all that is sound is applied: groups, and
            of a damaged group the entries whose own checksum holds. None: damage is an error.

    Raises:
        JournalMissingError, JournalCorruptError: A file with acknowledged records is missing or damaged.
    """
    last_id = journal_ids[-1] if journal_ids else 0
    mark = await disk.run(replay_start, disk, directory, journal_ids, mark)
    wanted = [journal_id for journal_id in journal_ids if journal_id >= mark.journal_id]
    synced = await disk.run(read_last_synced, disk, directory)
    if synced > mark and synced.offset > FIRST_GROUP_OFFSET:
        is_closed = False  # the mark is older than the journal
    if not is_closed:
        _check_present(directory, journal_ids, mark, skip_damaged)
    end = mark
    for journal_id in wanted:
        path = directory / journal_name(journal_id)
        file = await disk.run(disk.open, path)
        try:
            size = await disk.run(file.size)
            try:
                durable = synced.offset if synced.journal_id == journal_id else 0
                scan = await disk.run(_open_scan, file.pread, size, journal_id, skip_damaged, durable)
                _check_predecessor(path, scan.predecessor, end, wanted, skip_damaged)
                groups = scan.groups(mark.offset if journal_id == mark.journal_id else 0)
                while (records := await disk.run(_some_groups, groups)) is not None:
                    await apply(records, JournalMark(journal_id, scan.end))
                reached = JournalMark(journal_id, scan.end)
                end = max(mark, reached) if is_closed else reached  # an emptied file ends before its mark
            except FormatError as exc:
                if is_closed and journal_id == mark.journal_id:
                    log.warning("%s: %s; its journal was closed in order, so nothing is lost", path, exc)
                    continue
                if skip_damaged is None:
                    raise JournalCorruptError(
                        f"{path}: {exc}",
                        "If it cannot be restored, let other replicas recover this bookie's entries, then"
                        " start once with skipReplayJournalInvalidRecord=true, which leaves out this file",
                    ) from exc
                skip_damaged(f"{path}: {exc}; the file is left out")
                end = JournalMark(journal_id, 0)
        finally:
            file.close()
    _check_last_synced(directory, synced, end, skip_damaged)
    return JournalEnd(end, last_id)


def _check_present(
    directory: Path, journal_ids: Sequence[int], mark: JournalMark, skip_damaged: OnDamage | None
) -> None:
    """Check that the file which the mark names is there."""
    if mark.journal_id == 0 or mark.journal_id in journal_ids:
        return
    evidence = (
        f"{directory}: lastMark names {mark}, but {journal_name(mark.journal_id)} is missing; present:"
        f" {', '.join(map(journal_name, journal_ids)) or 'no journal file'}"
    )
    if skip_damaged is None:
        raise JournalMissingError(
            f"{evidence}. Entries acknowledged after the mark are in that file",
            "Bring it back, or check that the journal directory is the right one and mounted. If it is lost,"
            " discard this bookie's disks and recover its ledgers from the others",
        )
    skip_damaged(evidence)


async def follows_none(disk: Disk, directory: Path, journal_id: int) -> bool:
    """True if the file notes that it had no predecessor."""
    file = await disk.run(disk.open, directory / journal_name(journal_id))
    try:
        start_of_file = await disk.run(file.pread, FIRST_GROUP_OFFSET, 0)
    finally:
        file.close()
    return decode_file_trailer(start_of_file, journal_id) == Predecessor(0, 0)


def _check_last_synced(
    directory: Path, synced: JournalMark, end: JournalMark, skip_damaged: OnDamage | None
) -> None:
    """Check that the files reach ``lastSynced``. A file without a group may be missing: it has no records."""
    if synced <= end or synced.offset <= FIRST_GROUP_OFFSET:
        return
    path = directory / journal_name(synced.journal_id)
    if synced.journal_id != end.journal_id:
        found = f"but {path.name} is missing"
    else:
        found = f"but {path.name} can be read up to offset {end.offset} only"
    message = f"{directory}: the journal was durable up to {synced} according to {LAST_SYNCED}, {found}"
    if skip_damaged is None:
        raise JournalCorruptError(
            f"{message}. Acknowledged entries are lost here",
            "Bring the file back, or let other replicas recover them, then start once with"
            " skipReplayJournalInvalidRecord=true",
        )
    skip_damaged(message)


def _open_scan(
    read: Read, size_bytes: int, journal_id: int, skip_damaged: OnDamage | None, durable_bytes: int
) -> JournalScan:
    return JournalScan(read, size_bytes, journal_id, skip_damaged=skip_damaged, durable_bytes=durable_bytes)


def _some_groups(groups: Iterator[Sequence[bytes]]) -> Sequence[bytes] | None:
    """Some groups of records: one change of threads serves many small ones."""
    records: list[bytes] = []
    size_bytes = 0
    for group in groups:
        records += group
        size_bytes += sum(map(len, group))
        if size_bytes >= PIECE_BYTES:
            break
    return records or None


def _check_predecessor(
    path: Path,
    noted: Predecessor | None,
    end: JournalMark,
    wanted: Sequence[int],
    skip_damaged: OnDamage | None,
) -> None:
    """Check that the predecessor noted in a file exists and reaches as far as noted."""
    if noted is None or noted.journal_id == 0 or noted.journal_id < wanted[0]:
        return
    if noted.journal_id not in wanted:
        evidence = f"{path} follows {journal_name(noted.journal_id)}, which is missing"
        if skip_damaged is None:
            raise JournalMissingError(
                f"{evidence}. Entries acknowledged in it are not in ledger storage yet",
                "Bring the file back, or discard this bookie's disks",
            )
        skip_damaged(evidence)
    if noted.journal_id == end.journal_id and noted.end > end.offset:
        evidence = (
            f"{path.with_name(journal_name(end.journal_id))}: can be read up to offset {end.offset}, but was"
            f" durable up to {noted.end}"
        )
        if skip_damaged is None:
            raise JournalCorruptError(
                f"{evidence}. The disk has damaged acknowledged entries",
                "Recover them from other replicas, then start once with skipReplayJournalInvalidRecord=true",
            )
        skip_damaged(evidence)
