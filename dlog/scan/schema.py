"""The columns of a scan, and records as their arrays.

Inside: ``Converter``: the schema, the arrays of a batch. Not inside: reading, the arrays of the log's own
columns (``dlog.read.arrow_columns``).
Always: every batch has the schema that the scan says.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from dlog.read.arrow_columns import schema_of
from dlog.read.record_batch import ATTRIBUTES, COLUMNS, RecordBatch


class Converter:
    """Makes record batches of Arrow with these columns of the log; None: all but ``dlsn``.

    Raises:
        ValueError: There is no such column, or it is named twice.
    """

    def __init__(self, columns: Sequence[str] | None) -> None:
        self._names = COLUMNS + ATTRIBUTES if columns is None else tuple(columns)
        if isinstance(columns, str):
            raise ValueError(f"columns={columns!r}: give a list of names")
        if len(set(self._names)) < len(self._names) or not self._names:
            raise ValueError(f"columns={list(self._names)}: name one or more, each once")
        self.schema: pa.Schema = schema_of(self._names)

    def convert(self, records: RecordBatch) -> pa.RecordBatch:
        """The records as arrays."""
        return records.to_arrow(columns=self._names)
