"""`dlog inspect journal|entry-log|map|index|mark FILE`: print the files of a stopped bookie.

The files are those of Apache's bookies or of ours.
Inside: the records of a file, in order. Not inside: the formats (``bookie``).
Always: a file is only read, and in pieces, so that memory does not depend on its size. If a file is damaged,
the records before the damaged group are printed, then the error names the place.

An offset is that of a record's length field, as Java's ``readjournal`` and ``readlog`` print it.

Source: BookKeeper, ReadJournalCommand.java, ReadLogCommand.java, ReadLogMetadataCommand.java,
LastMarkCommand.java.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import attrs
import click

from bookie.entrylog.format import (
    HEADER_BYTES,
    LENGTH_BYTES,
    EntryLogScan,
    ScannedEntry,
    decode_map,
    entry_log_id_of,
    entry_log_name,
    split_location,
)
from bookie.errors import FormatError, JournalCorruptError
from bookie.index.entry_index import EntryRange
from bookie.index.page_file import (
    PAGE_FILE_HEADER_BYTES,
    decode_page_file_header,
    page_file_ledger_id,
    page_file_ranges,
)
from bookie.journal.format import (
    RECORD_HEADER,
    RECORD_IDS,
    RecordKind,
    decode_mark,
    decode_special,
    is_closed_mark,
    journal_id_of,
    journal_name,
)
from bookie.journal.replay import JournalScan
from bookie.length_prefixes import LENGTH
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import counted, print_facts, print_json, print_note, print_table

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
NONE_YET = -1  # a LAC before the first entry is confirmed

Read = Callable[[int, int], bytes]
T = TypeVar("T")


@attrs.frozen
class InspectedRecord:
    """One record of a journal or an entry log."""

    offset: int  # of its length field
    kind: str
    ledger_id: int
    entry_id: int | None  # None if the record is no entry
    lac: int | None  # None if the record is neither an entry nor an explicit LAC
    size_bytes: int  # without the length field
    data: bytes


def data_option(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option `--data`."""
    return click.option(
        "--data", "with_data", is_flag=True, help="Print the bytes too: hexadecimal, or base64 in JSON."
    )(command)


@click.group("inspect", cls=CommandGroup)
def command() -> None:
    """Print the files of a stopped bookie, Apache's or ours.

    Offsets are those of Apache's readjournal and readlog. Exit code 7 means that the file is damaged; all
    records before the damage have been printed.
    """


@command.command("journal")
@click.argument("file", type=FILE)
@click.option("--journal-id", metavar="HEX", help="The id of the journal, if FILE was renamed.")
@data_option
@click.option("--show-secrets", is_flag=True, help="With --data: print the bytes of master keys too.")
@json_option("one object per record, one a line,")
def journal(file: Path, journal_id: str | None, with_data: bool, show_secrets: bool, as_json: bool) -> None:
    """Print the records of a journal file (ID.txn).

    A record is an entry, a master key, a fence or an explicit LAC. A master key gives the right to write to
    its ledger, so its bytes are printed with --show-secrets only.
    """
    number = journal_id_of(f"{journal_id.lower()}.txn" if journal_id else file.name)
    if number is None:
        raise click.UsageError(
            f"{journal_id or file.name} is no journal id in hexadecimal;"
            " give the journal's id with --journal-id HEX"
        )
    with _reading(file) as (read, size_bytes):
        scan = _named(file, lambda: JournalScan(read, size_bytes, number))
        count = 0
        try:
            for record in journal_records(scan):
                count += 1
                is_shown = with_data and (show_secrets or record.kind != RecordKind.KEY.value)
                _print_record(record, with_data=is_shown, as_json=as_json)
        except (FormatError, JournalCorruptError) as exc:
            raise FormatError(f"{file}: {exc}; {counted(count, 'record')} printed before it") from exc
    why = f" ({scan.ending})" if scan.ending else ""
    print_note(f"{file.name}: {counted(count, 'record')}, up to offset {scan.end}{why}")


@command.command("entry-log")
@click.argument("file", type=FILE)
@click.option("--ledger", "ledger_id", type=click.IntRange(min=0), help="Only entries of this ledger.")
@data_option
@json_option("one object per entry, one a line,")
def entry_log(file: Path, ledger_id: int | None, with_data: bool, as_json: bool) -> None:
    """Print the entries of an entry log (ID.log)."""
    with _reading(file) as (read, size_bytes):
        _ledger_bytes(file, read, size_bytes)  # raises if FILE is no entry log
        scan = EntryLogScan(read, size_bytes)
        count = 0
        for found in scan.entries():
            if ledger_id in (None, found.ledger_id):
                count += 1
                record = _record(found, read, whole=with_data)
                _print_record(record, with_data=with_data, as_json=as_json)
    if scan.damage is not None:
        raise FormatError(f"{file}: {scan.damage}; {counted(count, 'entry', 'entries')} printed before it")
    print_note(f"{file.name}: {counted(count, 'entry', 'entries')}")


@command.command("index")
@click.argument("file", type=FILE)
@json_option("one object for the header and one per entry, one a line,")
def index_file(file: Path, as_json: bool) -> None:
    """Print the header and the entries of an index file (LEDGER.idx).

    A bookie with SortedLedgerStorage or InterleavedLedgerStorage has one such file per ledger. The file has
    no checksum: a damaged header is detected, a damaged location is not.
    """
    ledger_id = page_file_ledger_id(file.name)
    if ledger_id is None:
        raise click.UsageError(
            f"{file.name} is no name of an index file; rename it to LEDGER.idx,"
            " where LEDGER is the ledger id in hexadecimal"
        )
    with _reading(file) as (read, size_bytes):
        header = _named(file, lambda: decode_page_file_header(read(PAGE_FILE_HEADER_BYTES, 0)))
        lac = None
        if header.explicit_lac is not None:
            lac = RECORD_IDS.unpack_from(header.explicit_lac)[1]
        document = {
            "ledger": ledger_id,
            "has_master_key": bool(header.master_key),
            "fenced": header.fenced,
            "explicit_lac": lac,
        }
        if as_json:
            print_json(document)
        else:
            print_facts((name.replace("_", " "), str(value)) for name, value in document.items())
        count = 0
        for entry_range in page_file_ranges(read, ledger_id):
            count += len(entry_range.entry_ids)
            print_places(entry_range, as_json=as_json)
    print_note(f"{file.name}: {counted(count, 'entry', 'entries')} in {counted(size_bytes, 'byte')}")


def print_places(entry_range: EntryRange, *, as_json: bool) -> None:
    """Print the places of entries, one a line. The offset is that of the length field before the entry."""
    for entry_id, location in zip(entry_range.entry_ids, entry_range.locations, strict=True):
        log_id, offset = split_location(location)
        at = offset - LENGTH_BYTES
        if as_json:
            print(json.dumps({"entry_id": entry_id, "log": entry_log_name(log_id), "offset": at}))
        else:
            print(f"entry {entry_id:>11} {entry_log_name(log_id):>13} {at:>11}")


@command.command("map")
@click.argument("file", type=FILE)
@json_option("the map")
def map_(file: Path, as_json: bool) -> None:
    """Print the bytes of each ledger in an entry log (ID.log).

    A complete log has a map with these numbers. The log that a bookie still writes has none, and the command
    reads all of it.
    """
    with _reading(file) as (read, size_bytes):
        ledgers = _ledger_bytes(file, read, size_bytes)
        is_complete = ledgers is not None
        if ledgers is None:
            ledgers = {}
            scan = EntryLogScan(read, size_bytes)
            for found in scan.entries():
                ledgers[found.ledger_id] = ledgers.get(found.ledger_id, 0) + LENGTH_BYTES + found.size_bytes
            if scan.damage is not None:
                raise FormatError(f"{file}: {scan.damage}")
    if as_json:
        documents = [{"ledger_id": key, "size_bytes": size} for key, size in sorted(ledgers.items())]
        print_json(
            {
                "log_id": entry_log_id_of(file.name),
                "has_map": is_complete,
                "size_bytes": sum(ledgers.values()),
                "ledgers": documents,
            }
        )
        return
    print_table(["ledger", "bytes"], [[str(key), f"{size:,}"] for key, size in sorted(ledgers.items())])
    print_note(
        f"{file.name}: {'read from its map' if is_complete else 'it has no map, so all of it was read'}"
    )


@command.command("mark")
@click.argument("file", type=FILE)
@json_option("the position")
def mark(file: Path, as_json: bool) -> None:
    """Print the journal position in a lastMark file. All records before it are in ledger storage."""
    data = file.read_bytes()
    found = _named(file, lambda: decode_mark(data))
    is_closed = is_closed_mark(data)
    if as_json:
        print_json({"journal_id": found.journal_id, "offset": found.offset, "closed": is_closed})
    else:
        facts = [("journal", journal_name(found.journal_id)), ("offset", str(found.offset))]
        print_facts([*facts, ("closed in order", "yes" if is_closed else "no")])


def journal_records(scan: JournalScan) -> Iterator[InspectedRecord]:
    """The records of a journal file, in order.

    Raises:
        JournalCorruptError, FormatError: The file is damaged. The records before the damage were yielded.
    """
    for records in scan.groups():
        offset = scan.group_start
        for record in records:
            yield _journal_record(offset, record)
            offset += LENGTH.size + len(record)


def _journal_record(offset: int, record: bytes) -> InspectedRecord:
    ledger_id, entry_id = RECORD_IDS.unpack_from(record)
    if entry_id >= 0:
        lac = RECORD_HEADER.unpack_from(record)[2] if len(record) >= RECORD_HEADER.size else None
        return InspectedRecord(offset, RecordKind.ENTRY.value, ledger_id, entry_id, lac, len(record), record)
    try:
        kind, content = decode_special(record)
    except FormatError as exc:
        raise FormatError(f"offset {offset}: {exc}") from exc
    lac = None
    if kind is RecordKind.EXPLICIT_LAC and len(content) >= RECORD_IDS.size:
        _, lac = RECORD_IDS.unpack_from(content)
    return InspectedRecord(offset, kind.value, ledger_id, None, lac, len(record), record)


def _record(found: ScannedEntry, read: Read, *, whole: bool) -> InspectedRecord:
    data = read(found.size_bytes if whole else RECORD_HEADER.size, found.offset)
    has_lac = min(len(data), found.size_bytes) >= RECORD_HEADER.size
    return InspectedRecord(
        found.offset - LENGTH_BYTES,
        RecordKind.ENTRY.value,
        found.ledger_id,
        found.entry_id,
        RECORD_HEADER.unpack_from(data)[2] if has_lac else None,
        found.size_bytes,
        data,
    )


def _print_record(record: InspectedRecord, *, with_data: bool, as_json: bool) -> None:
    if as_json:
        document = attrs.asdict(record)
        data = document.pop("data")
        if with_data:
            document["data_base64"] = base64.b64encode(data).decode("ascii")
        print(json.dumps(document))
        return
    entry = "" if record.entry_id is None else f" entry {record.entry_id}"
    lac = "" if record.lac in (None, NONE_YET) else f" lac {record.lac}"
    line = f"{record.offset:>11} {record.kind:<12} ledger {record.ledger_id}{entry}{lac}"
    print(line, "bytes", record.size_bytes, *([record.data.hex()] if with_data else []))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[tuple[Read, int]]:
    with path.open("rb") as file:
        descriptor = file.fileno()

        def read(size_bytes: int, offset: int) -> bytes:
            return os.pread(descriptor, size_bytes, offset)

        yield read, os.fstat(descriptor).st_size


def _ledger_bytes(file: Path, read: Read, size_bytes: int) -> dict[int, int] | None:
    return _named(file, lambda: decode_map(read(HEADER_BYTES, 0), read, size_bytes))


def _named(file: Path, action: Callable[[], T]) -> T:
    try:
        return action()
    except FormatError as exc:
        raise FormatError(f"{file}: {exc}") from exc
