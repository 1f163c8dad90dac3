"""The two RocksDB databases of Apache's DbLedgerStorage: read as they are, or built new.

``locations``   key    ledger i64, entry i64          value  location i64
``ledgers``     key    ledger i64                     value  ``LedgerData`` (see ``ledger_record``)
                key    -0xeefd                        value  bits i64; 0x1: a check of all ledgers is due

All integers are big-endian. Keys below zero, which come last in the order of bytes, belong to no ledger.

Inside: the keys and values. Not inside: RocksDB (``disk``), which bookie may open them (``apache_refusal``),
building and exchanging an index (``offline.index_rebuild``).
Always: databases that are read are not changed. A key or value of another form is an error and never absence.

Source: EntryLocationIndex.java, LedgerMetadataIndex.java, DbLedgerStorageDataFormats.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct

from bookie.disk.disk import Disk
from bookie.disk.key_values import BATCH_OPERATIONS_MAX, Operation
from bookie.errors import FormatError
from bookie.index.apache_refusal import DATABASES
from bookie.index.entry_index import EntryRange
from bookie.ledger_record import LedgerData, decode_ledger_data, encode_apache_ledger_data

_ENTRY = Struct(">qq")
_NUMBER = Struct(">q")
_FLAGS_KEY = _NUMBER.pack(-0xEEFD)
_NEEDS_CHECK = 1
_ID_MAX = 2**63 - 1
_LAC_BYTES_MIN = 16  # of an explicit LAC: ledger id and LAC, before the digest
_RANGE_ENTRIES_MAX = 1024
_STOP_OF_LEDGERS = b"\x80"


def encode_location(ledger_id: int, entry_id: int, location: int) -> tuple[bytes, bytes]:
    """Key and value of an entry in ``locations``."""
    return _ENTRY.pack(ledger_id, entry_id), _NUMBER.pack(location)


def decode_location(key: bytes, value: bytes) -> tuple[int, int, int]:
    """Ledger id, entry id and location of a record in ``locations``. ``FormatError`` if it is none."""
    if len(key) != _ENTRY.size or len(value) != _NUMBER.size:
        raise FormatError(
            f"locations: key {key.hex()} of {len(key)} bytes with a value of {len(value)} bytes;"
            f" {_ENTRY.size} and {_NUMBER.size} are expected"
        )
    (ledger_id, entry_id), (location,) = _ENTRY.unpack(key), _NUMBER.unpack(value)
    if entry_id < 0 or location <= 0:
        raise FormatError(f"locations: entry {ledger_id}:{entry_id} has the location {location}")
    return ledger_id, entry_id, location


def encode_ledger(ledger_id: int, data: LedgerData) -> tuple[bytes, bytes]:
    """Key and value of a ledger in ``ledgers``."""
    return _NUMBER.pack(ledger_id), encode_apache_ledger_data(data)


def decode_ledger(key: bytes, value: bytes) -> tuple[int, LedgerData]:
    """Ledger id and data of a record in ``ledgers``; LAC and last entry id are -1. ``FormatError``."""
    if len(key) != _NUMBER.size:
        raise FormatError(f"ledgers: key {key.hex()} of {len(key)} bytes; {_NUMBER.size} are expected")
    ledger_id: int = _NUMBER.unpack(key)[0]
    try:
        data = decode_ledger_data(value)
    except FormatError as exc:
        raise FormatError(f"ledgers: ledger {ledger_id}: {exc}") from exc
    if data.explicit_lac is not None and len(data.explicit_lac) < _LAC_BYTES_MIN:
        raise FormatError(f"ledgers: ledger {ledger_id}: explicit LAC of {len(data.explicit_lac)} bytes")
    return ledger_id, data


class ApacheDatabases:
    """Both databases below an index directory. An ``IndexView``, and an ``IndexBuild`` if they are new.

    ``OSError`` if the disk fails or a database is damaged; ``FormatError`` for a malformed record.
    """

    def __init__(self, disk: Disk, directory: Path, *, create: bool = False) -> None:
        """Open the databases read-only, or create empty ones. ``StartError`` if RocksDB refuses the files."""
        ledgers, locations = (directory / name for name in DATABASES)
        self._ledgers = disk.open_apache_database(ledgers, create=create)
        try:
            self._locations = disk.open_apache_database(locations, create=create)
        except BaseException:
            self._ledgers.close()
            raise

    def ledgers(self) -> Iterator[tuple[int, LedgerData]]:
        """The data of all ledgers, in order of their ids."""
        for key, value in self._ledgers.scan(b"", _STOP_OF_LEDGERS):
            yield decode_ledger(key, value)

    def ledgers_with_entries(self) -> Iterator[int]:
        """The ids of all ledgers in ``locations``, ascending; one look-up for each."""
        start = b""
        while (found := next(self._locations.scan(start, _STOP_OF_LEDGERS), None)) is not None:
            ledger_id = decode_location(*found)[0]
            yield ledger_id
            if ledger_id == _ID_MAX:
                return
            start = _NUMBER.pack(ledger_id + 1)

    def ranges(self, ledger_id: int) -> Iterator[EntryRange]:
        """The entries of a ledger, ascending, in ranges of at most a few thousand."""
        entry_ids: list[int] = []
        locations: list[int] = []
        stop = _NUMBER.pack(ledger_id + 1) if ledger_id < _ID_MAX else _STOP_OF_LEDGERS
        for key, value in self._locations.scan(_NUMBER.pack(ledger_id), stop):
            _, entry_id, location = decode_location(key, value)
            entry_ids.append(entry_id)
            locations.append(location)
            if len(entry_ids) == _RANGE_ENTRIES_MAX:
                yield EntryRange(ledger_id, entry_ids, locations)
                entry_ids, locations = [], []
        if entry_ids:
            yield EntryRange(ledger_id, entry_ids, locations)

    def needs_integrity_check(self) -> bool:
        """True if Apache's bookie found that entries may be missing, and has not checked its ledgers yet."""
        value = self._ledgers.get(_FLAGS_KEY)
        if value is None:
            return False
        if len(value) != _NUMBER.size:
            raise FormatError(f"ledgers: storage state of {len(value)} bytes; {_NUMBER.size} are expected")
        return bool(_NUMBER.unpack(value)[0] & _NEEDS_CHECK)

    def put(self, ranges: Iterable[EntryRange], ledgers: Iterable[tuple[int, LedgerData]] = ()) -> None:
        """Add entries, and ledger data. A new location replaces an old one. Durable after ``sync``."""
        for one in ranges:
            ids, places = one.entry_ids, one.locations
            for start in range(0, len(ids), BATCH_OPERATIONS_MAX):
                stop = start + BATCH_OPERATIONS_MAX
                pairs: Sequence[tuple[int, int]] = list(zip(ids[start:stop], places[start:stop], strict=True))
                batch: list[Operation] = [encode_location(one.ledger_id, *pair) for pair in pairs]
                self._locations.write(batch)
        records: list[Operation] = [encode_ledger(*one) for one in ledgers]
        for start in range(0, len(records), BATCH_OPERATIONS_MAX):
            self._ledgers.write(records[start : start + BATCH_OPERATIONS_MAX])

    def sync(self) -> None:
        """Return when all earlier writes are on stable storage."""
        self._locations.sync()
        self._ledgers.sync()

    def close(self) -> None:
        """Close both databases."""
        self._locations.close()
        self._ledgers.close()
