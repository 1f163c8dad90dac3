"""Rows as payloads of streams.

Always: every column has a meaning here, so nothing of a row is left out silently; rows of one stream keep
their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from dlog.format.attributes import encode_attributes
from dlog.format.large_record import LARGE_RECORD_BYTES_MAX
from dlog.format.record import PAYLOAD_BYTES_MAX, TXID_MAX
from dlog.shards import shard_of
from spark_integration.errors import RowFormatError

PAYLOAD_NAMES = ("payload", "value")
STREAM = "stream"
KEY, HEADERS = "key", "headers"  # of the record

Rows = tuple[str, list[bytes], list[int] | None, list[bytes | None] | None]
"""A stream; of its rows the payloads, and if they bring them transaction ids, and encoded attributes."""


def check_schema(schema: StructType, txid_column: str | None = None, key_column: str | None = None) -> None:
    """Raise unless rows of these columns can be written.

    Args:
        txid_column: The column with the transaction ids, if the rows bring them.
        key_column: The column that chooses the shard, if the rows go to a sharded log.

    Raises:
        RowFormatError: A column is missing, unknown, or of another type.
    """
    names = [field.name.lower() for field in schema.fields]  # in Spark, the case of a name means nothing
    for option, column in (("txidColumn", txid_column), ("keyColumn", key_column)):
        taken = {*PAYLOAD_NAMES, STREAM, HEADERS} | ({KEY} if column is txid_column else set())
        if column is not None and (column in taken or names.count(column) != 1):
            raise RowFormatError(
                f"option {option}: the rows have no column of their own {column!r}; they have {names}"
            )
    if key_column is not None and (STREAM in names or key_column == txid_column):
        raise RowFormatError(
            f"option keyColumn: column {key_column!r} chooses the shard of each row; leave out the column"
            f" {STREAM!r}, and give transaction ids in another column"
        )
    payloads = [name for name in names if name in PAYLOAD_NAMES]
    if len(payloads) != 1:
        raise RowFormatError(
            f"the rows need one column 'payload' or 'value', binary or string; they have {names}. Choose it"
            " with .select(...)"
        )
    if others := [
        name for name in names if name not in (*payloads, STREAM, KEY, HEADERS, txid_column, key_column)
    ]:
        raise RowFormatError(
            f"the columns {others} would be lost: a record has a payload, a stream, a key and headers."
            " Leave them out with .select('stream', 'payload'), put them into the payload, as with"
            " to_json(struct(...)), or give the transaction ids with the option txidColumn. In SQL,"
            " insert into a view with columns: CREATE TEMPORARY VIEW target (payload STRING) USING dlog ..."
        )
    for name, field in zip(names, schema.fields, strict=True):
        allowed: tuple[type[StringType | BinaryType | LongType | IntegerType], ...] = (BinaryType, StringType)
        if name == STREAM:
            allowed = (StringType,)
        elif name == txid_column:
            allowed = (LongType, IntegerType)
        elif name == HEADERS:
            if not _are_headers(field.dataType):
                raise RowFormatError(
                    f"column {HEADERS!r} is {field.dataType.simpleString()}; it must be an array of structs"
                    " of key, a string, and value, binary or string. map_entries(...) makes one of a map"
                )
            continue
        if not isinstance(field.dataType, allowed):
            raise RowFormatError(
                f"column {name!r} is {field.dataType.simpleString()}; it must be"
                f" {' or '.join(each().simpleString() for each in allowed)}"
            )


def rows_of(
    rows: pa.RecordBatch,
    default: str,
    txid_column: str | None = None,
    *,
    key_column: str | None = None,
    shards: Sequence[str] = (),
    payload_bytes_max: int = PAYLOAD_BYTES_MAX,
) -> Iterator[Rows]:
    """The rows of each stream, in order, with transaction ids, keys and headers if the rows bring them.

    Args:
        default: The stream of rows without one.
        key_column: With ``shards``: the column that chooses one of them.
        payload_bytes_max: Of a record, by the setting ``writer.record_bytes_max``.

    Raises:
        RowFormatError: A payload is null or too long, a transaction id is null or invalid, a key that chooses
            a shard is null, or a record cannot have these headers.
    """
    rows = rows.rename_columns([each.lower() for each in rows.schema.names])
    (name,) = (each for each in rows.schema.names if each in PAYLOAD_NAMES)
    column = rows.column(name)
    if column.null_count:
        raise RowFormatError(f"column {name!r}: a payload is null; leave such rows out with .where(...)")
    payloads = column if _is_binary(column.type) else pc.cast(column, pa.large_binary())
    longest = pc.max(pc.binary_length(payloads)).as_py() or 0
    if longest > payload_bytes_max:
        raise RowFormatError(
            f"column {name!r}: a payload has {longest} bytes; at most {payload_bytes_max} by"
            " client.writer.record_bytes_max, which may be up to"
            f" {LARGE_RECORD_BYTES_MAX}. Apache's programs read at most {PAYLOAD_BYTES_MAX}"
        )
    txids = None if txid_column is None else _txids(rows.column(txid_column), txid_column)
    attributes = _attributes(rows)
    if key_column is not None:
        streams = _shards(rows.column(key_column), key_column, shards)
    elif STREAM not in rows.schema.names:
        yield default, payloads.to_pylist(), None if txids is None else txids.to_pylist(), attributes
        return
    else:
        streams = pc.fill_null(pc.cast(rows.column(STREAM), pa.string()), default)
    for stream in pc.unique(streams).to_pylist():
        chosen = pc.equal(streams, stream)
        ids = None if txids is None else txids.filter(chosen).to_pylist()
        some = None if attributes is None else list(compress(attributes, chosen.to_pylist()))
        yield stream, payloads.filter(chosen).to_pylist(), ids, some


def _are_headers(kind: DataType) -> bool:
    item = kind.elementType if isinstance(kind, ArrayType) else None
    return (
        isinstance(item, StructType)
        and item.names == ["key", "value"]
        and isinstance(item["key"].dataType, StringType)
        and isinstance(item["value"].dataType, BinaryType | StringType)
    )


def _attributes(rows: pa.RecordBatch) -> list[bytes | None] | None:
    """The key and the headers of each row, encoded; None if no row has any."""
    names = rows.schema.names
    if KEY not in names and HEADERS not in names:
        return None
    keys: list[bytes | None] = [None] * len(rows)
    if KEY in names:
        column = rows.column(KEY)
        keys = (column if _is_binary(column.type) else pc.cast(column, pa.large_binary())).to_pylist()
    headers = rows.column(HEADERS).to_pylist() if HEADERS in names else [None] * len(rows)
    try:
        found = [encode_attributes(key, _headers(each)) for key, each in zip(keys, headers, strict=True)]
    except ValueError as exc:
        raise RowFormatError(f"columns {KEY!r} and {HEADERS!r}: {exc}") from None
    return None if not any(found) else found


def _headers(items: Sequence[Mapping[str, Any] | None] | None) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for item in items or ():
        name, value = (None, None) if item is None else (item["key"], item["value"])
        if name is None or value is None or name in found:
            what = "twice" if name in found else f"with the value {value!r}"
            raise RowFormatError(
                f"column {HEADERS!r}: a row has the header {name!r} {what}; a record has each name once, with"
                " a value"
            )
        found[name] = value.encode() if isinstance(value, str) else value
    return found


def _shards(column: pa.Array, name: str, shards: Sequence[str]) -> pa.Array:
    """The shard of each key; a string counts as its UTF-8, as in ``dlog.shards``."""
    if column.null_count:
        raise RowFormatError(f"column {name!r}: a key is null; leave such rows out with .where(...)")
    keys = column if _is_binary(column.type) else pc.cast(column, pa.large_binary())
    numbers = [shard_of(key, len(shards)) for key in keys.to_pylist()]
    return pa.array(shards, pa.string()).take(pa.array(numbers, pa.int32()))


def _txids(column: pa.Array, name: str) -> pa.Array:
    if column.null_count:
        raise RowFormatError(f"column {name!r}: a transaction id is null")
    if len(column) and not 0 <= pc.min(column).as_py() <= pc.max(column).as_py() < TXID_MAX:
        raise RowFormatError(f"column {name!r}: a transaction id is not between 0 and 2**63 - 2")
    return column


class TxidOrder:
    """Checks that the transaction ids of each stream do not decrease within a task."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def check(self, stream: str, txids: list[int]) -> None:
        """Check the next ids of the stream.

        Raises:
            RowFormatError: One is less than the one before it.
        """
        before = self._last.get(stream, 0)
        if txids and (txids[0] < before or txids != sorted(txids)):
            first, second = next(pair for pair in pairwise([before, *txids]) if pair[1] < pair[0])
            raise RowFormatError(
                f"stream {stream!r}: a row with transaction id {second} comes after one with {first}; they"
                " must not decrease within a partition: use .sortWithinPartitions(...)"
            )
        if txids:
            self._last[stream] = txids[-1]


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
