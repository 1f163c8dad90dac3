"""The batches of a scan in a file: Parquet, or CSV.

Inside: the writers. Not inside: reading; a file that appears when it is complete (``ledger.runtime``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet


class TableFile(Protocol):
    """A file that takes batches of one schema."""

    def write_batch(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def parquet_file(path: Path, schema: pa.Schema) -> TableFile:
    """A new file of Parquet; each batch becomes a row group."""
    file: TableFile = pyarrow.parquet.ParquetWriter(path, schema)
    return file


class CsvFile:
    """A new file of CSV, with a line of names. Bytes are text, headers are JSON, null is nothing.

    Raises:
        ValueError: A column is no text in CSV, or bytes are not UTF-8; the message names the column.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_nested(field.type) and field.name != "headers":
                raise ValueError(f"column {field.name!r} is {field.type}, which CSV cannot hold")
        text = [
            field.with_type(pa.string())
            if pa.types.is_binary(field.type) or pa.types.is_nested(field.type)
            else field
            for field in schema
        ]
        self._schema = pa.schema(text)
        self._writer = pyarrow.csv.CSVWriter(path, self._schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append the rows."""
        columns = [_as_text(name, batch[name]) for name in batch.schema.names]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()


def _as_text(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type):
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            raise ValueError(f"a {name} is not text in UTF-8") from None
    if pa.types.is_nested(column.type):
        return pa.array([_headers_text(each) for each in column.to_pylist()], pa.string())
    return column


def _headers_text(headers: list[Mapping[str, Any]]) -> str | None:
    if not headers:
        return None
    try:
        return json.dumps({each["key"]: each["value"].decode() for each in headers})
    except UnicodeDecodeError:
        raise ValueError("a header is not text in UTF-8") from None
