"""Records as Arrow batches with the schema of the source.

Spark compares names, order, types and nullability of the first batch with the declared schema, and fails on
any difference. So both come from one table here. Batches of 1 to 4 MiB were the fastest in measurements.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructField, StructType

from dlog import RecordBatch
from spark_integration.errors import OptionError
from spark_integration.options import Columns
from spark_integration.payloads import Decode, as_text, decoded, json_decoder

BATCH_RECORDS_MAX = 16_384
BATCH_BYTES_TARGET = 2 * 1024 * 1024
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MILLISECONDS_MAX = 2**63 // 1000 - 1  # that fit a timestamp in microseconds

# As Spark's source of Kafka has them.
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_NUMBERS = (
    ("stream", "STRING", pa.string()),
    ("segment", "BIGINT", pa.int64()),
    ("entry", "BIGINT", pa.int64()),
    ("slot", "BIGINT", pa.int64()),
    ("txid", "BIGINT", pa.int64()),
)


class ArrowRows:
    """Makes the rows of a query."""

    def __init__(self, columns: Columns, payload: DataType) -> None:
        """``payload`` is the type that Spark gave the column; see ``payload_type``."""
        self._columns = columns
        self._decode: Decode | None = None
        arrow: pa.DataType = pa.binary()
        if columns.payload_format == "utf8":
            self._decode, arrow = as_text, pa.string()
        elif columns.payload_format == "json":
            arrow = to_arrow_type(payload, timezone="UTC")
            try:
                self._decode = json_decoder(arrow)
            except pa.ArrowNotImplementedError as exc:
                raise OptionError(
                    f"option payloadSchema={columns.payload_schema!r}: {exc}; use another type, or read"
                    " payloadFormat=utf8 and Spark's from_json"
                ) from None
        fields = [pa.field(name, kind) for name, _, kind in _NUMBERS]
        fields.append(pa.field("payload", arrow))
        if columns.timestamp:
            fields.append(pa.field("timestamp", _TIMESTAMP))
        if columns.sequence:
            fields.append(pa.field("sequence", pa.int64()))
        if columns.headers:
            fields += [pa.field("key", pa.binary()), pa.field("headers", to_arrow_type(HEADERS))]
        self.schema = pa.schema(fields)

    def batch(self, stream: str, records: RecordBatch) -> pa.RecordBatch:
        """The records in order, as one batch with ``schema``.

        Raises:
            PayloadFormatError: A payload is not in the format of the query; unless ``payloadErrors=null``.
        """
        columns = records.to_arrow(attributes=self._columns.headers)
        arrays = [pa.repeat(pa.scalar(stream, pa.string()), len(records))]
        arrays += [columns.column(name) for name in ("segment", "entry", "slot", "txid")]
        payloads = columns.column("payload")
        if self._decode is not None:
            payloads = decoded(
                payloads,
                self._decode,
                null_on_error=self._columns.null_on_error,
                place=lambda index: f"stream {stream!r}, record {records.dlsn(index)}",
            )
        arrays.append(payloads)
        if self._columns.timestamp:
            arrays.append(_timestamps(columns.column("txid")))
        if self._columns.sequence:
            arrays.append(columns.column("sequence_id"))
        if self._columns.headers:
            arrays += [columns.column("key"), columns.column("headers")]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def ddl_of(columns: Columns) -> str:
    """The schema of a query, as Spark takes it from a source."""
    kind = {"bytes": "BINARY", "utf8": "STRING"}.get(columns.payload_format)
    if kind is None:
        kind = f"STRUCT<{columns.payload_schema}>"
    parts = [f"{name} {ddl}" for name, ddl, _ in _NUMBERS] + [f"payload {kind}"]
    if columns.timestamp:
        parts.append("timestamp TIMESTAMP")
    if columns.sequence:
        parts.append("sequence BIGINT")
    if columns.headers:
        parts.append("key BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>")
    return ", ".join(parts)


def payload_type(schema: StructType, columns: Columns) -> DataType:
    """The type of the payload in the schema that Spark made of ``ddl_of``.

    Raises:
        OptionError: The schema is another one: the program called ``.schema(...)``, or ``payloadSchema`` has
            a field that is NOT NULL.
    """
    kinds = {"bytes": BinaryType, "utf8": StringType, "json": StructType}
    expected = [name for name, _, _ in _NUMBERS] + ["payload"]
    expected += ["timestamp"] * columns.timestamp + ["sequence"] * columns.sequence
    expected += ["key", "headers"] * columns.headers
    types = {field.name: field.dataType for field in schema.fields}
    simple = {name: ddl.lower() for name, ddl, _ in _NUMBERS} | {
        "timestamp": "timestamp",
        "sequence": "bigint",
        "key": "binary",
        "headers": HEADERS.simpleString(),
    }
    if (
        [field.name for field in schema.fields] != expected
        or not isinstance(types["payload"], kinds[columns.payload_format])
        or any(types[name].simpleString() != ddl for name, ddl in simple.items() if name in types)
        or not _is_nullable(schema)
    ):
        raise OptionError(
            f"the schema {schema.simpleString()!r} differs from the columns of this source,"
            f" {ddl_of(columns)!r}; remove .schema(...) and NOT NULL, and select columns instead"
        )
    return types["payload"]


def _is_nullable(struct: StructType) -> bool:
    """True if every field may be null: Spark refuses others, and a field of JSON may be missing."""
    return all(
        field.nullable and (not isinstance(field.dataType, StructType) or _is_nullable(field.dataType))
        for field in struct.fields
    )


def _timestamps(txids: pa.Array) -> pa.Array:
    """Transaction ids as milliseconds since 1970; null for an id that no timestamp can express."""
    fits = pc.less_equal(txids, _MILLISECONDS_MAX)
    milliseconds = pc.if_else(fits, txids, pa.scalar(None, pa.int64()))
    return pc.multiply(milliseconds, 1000).cast(_TIMESTAMP)
