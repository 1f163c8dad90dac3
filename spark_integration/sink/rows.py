"""Rows as payloads of streams.

Always: every column has a meaning here, so nothing of a row is left out silently; rows of one stream keep
their order.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StringType, StructType

from dlog.format.record import PAYLOAD_BYTES_MAX
from spark_integration.errors import RowFormatError

PAYLOAD_NAMES = ("payload", "value")
STREAM = "stream"


def check_schema(schema: StructType) -> None:
    """Raise unless rows of these columns can be written.

    Raises:
        RowFormatError: A column is missing, unknown, or of another type.
    """
    names = [field.name for field in schema.fields]
    payloads = [name for name in names if name in PAYLOAD_NAMES]
    if len(payloads) != 1:
        raise RowFormatError(
            f"the rows need one column 'payload' or 'value', binary or string; they have {names}. Choose it"
            " with .select(...)"
        )
    if others := [name for name in names if name not in (*payloads, STREAM)]:
        raise RowFormatError(
            f"the columns {others} would be lost: a record has a payload and a stream. Leave them out with"
            " .select('stream', 'payload'), or put them into the payload, as with to_json(struct(...))"
        )
    for field in schema.fields:
        allowed = (StringType,) if field.name == STREAM else (BinaryType, StringType)
        if not isinstance(field.dataType, allowed):
            raise RowFormatError(
                f"column {field.name!r} is {field.dataType.simpleString()}; it must be"
                f" {' or '.join(each().simpleString() for each in allowed)}"
            )


def payloads_of(rows: pa.RecordBatch, default: str) -> Iterator[tuple[str, list[bytes]]]:
    """The payloads of each stream in the rows, in order.

    Args:
        default: The stream of rows without one.

    Raises:
        RowFormatError: A payload is null or too long.
    """
    (name,) = (each for each in rows.schema.names if each in PAYLOAD_NAMES)
    column = rows.column(name)
    if column.null_count:
        raise RowFormatError(f"column {name!r}: a payload is null; leave such rows out with .where(...)")
    payloads = column if _is_binary(column.type) else pc.cast(column, pa.large_binary())
    longest = pc.max(pc.binary_length(payloads)).as_py() or 0
    if longest > PAYLOAD_BYTES_MAX:
        raise RowFormatError(f"column {name!r}: a payload has {longest} bytes; at most {PAYLOAD_BYTES_MAX}")
    if STREAM not in rows.schema.names:
        yield default, payloads.to_pylist()
        return
    streams = pc.fill_null(pc.cast(rows.column(STREAM), pa.string()), default)
    for stream in pc.unique(streams).to_pylist():
        yield stream, payloads.filter(pc.equal(streams, stream)).to_pylist()


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
