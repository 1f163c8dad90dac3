"""What the rows of a segment are: their number, ends and digest, found while they pass by.

The digest depends on the rows alone, and neither on batches nor on the encoding of a file. So the rows that
were read from the log and those that are read from a file later can be compared.
Always: rows that are out of order or of another segment are an error.

Source: our own; docs/pipelines.md.
"""

from __future__ import annotations

import hashlib
from struct import Struct

import pyarrow as pa
import pyarrow.compute as pc

from dlog.format.attributes import encode_attributes
from spark_integration.errors import ArchiveDamagedError
from spark_integration.pipelines.archives.manifest import Content

_NUMBERS = Struct(">QI")
NUMBERS = ("segment", "entry", "slot", "txid", "sequence")
SCHEMA = pa.schema([*(pa.field(name, pa.int64()) for name in NUMBERS), pa.field("payload", pa.binary())])
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
FILE_SCHEMA = SCHEMA.append(pa.field("key", pa.binary())).append(
    pa.field("headers", pa.list_(pa.field("element", _HEADER)))
)
"""With the key and the headers of each record, null and empty without; older files have ``SCHEMA``."""


class ContentCheck:
    """Takes the rows of one segment in order, as batches with ``FILE_SCHEMA`` or ``SCHEMA``."""

    def __init__(self, segment: int) -> None:
        self._segment = segment
        self._records = 0
        self._first: tuple[int, int] | None = None
        self._last = (-1, -1)
        self._first_txid = self._last_txid = -1
        self._attributes = hashlib.sha256()
        self._has_attributes = False
        self._digests = {name: hashlib.sha256() for name in (*NUMBERS, "length", "payload")}

    def add(self, rows: pa.RecordBatch) -> None:
        """Take the next rows.

        Raises:
            ArchiveDamagedError: They are not rows of this segment in the order of their positions.
        """
        if not len(rows):
            return
        is_known = rows.schema.equals(SCHEMA) or rows.schema.equals(FILE_SCHEMA)
        if not is_known or any(column.null_count for column in rows.columns[: len(SCHEMA)]):
            raise self._damaged(f"has columns {rows.schema.names}, or a null")
        entries, slots = rows.column("entry"), rows.column("slot")
        if set(pc.min_max(rows.column("segment")).as_py().values()) != {self._segment}:
            raise self._damaged("has rows of another segment")
        first = (entries[0].as_py(), slots[0].as_py())
        if first <= self._last or not _is_increasing(entries, slots):
            raise self._damaged("has rows out of order")
        if self._first is None:
            self._first, self._first_txid = first, rows.column("txid")[0].as_py()
        self._last = (entries[-1].as_py(), slots[-1].as_py())
        self._last_txid = rows.column("txid")[-1].as_py()
        if len(rows.columns) > len(SCHEMA):
            self._add_attributes(rows.column("key"), rows.column("headers"))
        self._records += len(rows)
        for name in NUMBERS:
            self._digests[name].update(_numbers(rows.column(name)))
        payloads = rows.column("payload")
        self._digests["length"].update(_numbers(pc.cast(pc.binary_length(payloads), pa.int64())))
        self._digests["payload"].update(_bytes(payloads))

    def _add_attributes(self, keys: pa.Array, headers: pa.Array) -> None:
        """Take those of the records that have any, each with the number of its record in the segment."""
        lengths = pc.fill_null(pc.list_value_length(headers), 0)
        having = pc.or_(pc.is_valid(keys), pc.greater(lengths, 0))
        for at in pc.indices_nonzero(having).to_pylist():
            try:
                items = {item["key"]: item["value"] for item in headers[at].as_py() or ()}
                encoded = encode_attributes(keys[at].as_py(), items) or b""
            except (TypeError, ValueError) as exc:
                raise self._damaged(f"has a key or headers that no record has ({exc})") from None
            self._attributes.update(_NUMBERS.pack(self._records + at, len(encoded)) + encoded)
            self._has_attributes = True

    @property
    def content(self) -> Content | None:
        """The count, the bounds and the digest of the rows so far; None if there was no row."""
        if self._first is None:
            return None
        whole = hashlib.sha256(b"".join(digest.digest() for digest in self._digests.values()))
        if self._has_attributes:  # a segment without has the digest that it has in older archives
            whole.update(self._attributes.digest())
        return Content(
            records=self._records,
            first=self._first,
            last=self._last,
            first_txid=self._first_txid,
            last_txid=self._last_txid,
            sha256=whole.hexdigest(),
        )

    def _damaged(self, what: str) -> ArchiveDamagedError:
        return ArchiveDamagedError(f"segment {self._segment} {what} after record {self._records}")


def _is_increasing(entries: pa.Array, slots: pa.Array) -> bool:
    before, after = entries[:-1], entries[1:]
    same = pc.and_(pc.equal(after, before), pc.greater(slots[1:], slots[:-1]))
    return bool(pc.all(pc.or_(pc.greater(after, before), same), min_count=0).as_py())


def _numbers(column: pa.Array) -> memoryview:
    """The bytes of a column of int64."""
    return memoryview(column.buffers()[1])[column.offset * 8 : (column.offset + len(column)) * 8]


def _bytes(column: pa.Array) -> memoryview:
    """The bytes of all values of a binary column, one after the other."""
    _, offsets, data = column.buffers()
    if data is None:
        return memoryview(b"")
    ends = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, offsets], offset=column.offset)
    return memoryview(data)[ends[0].as_py() : ends[-1].as_py()]
