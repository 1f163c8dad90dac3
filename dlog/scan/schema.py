"""The columns of a scan, and records as their arrays.

Inside: ``Converter``: the schema, the arrays of a batch. Not inside: reading, the arrays of the log's own
columns (``dlog.read.arrow_columns``).
Always: every batch has the schema that the scan says; the bytes of an encrypted payload are never given as
the payload.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dlog.encryption import SEALED_MAGIC, sealed_with
from dlog.errors import EncryptionKeyError
from dlog.read.arrow_columns import schema_of
from dlog.read.record_batch import ATTRIBUTES, COLUMNS, RecordBatch


class Converter:
    """Makes record batches of Arrow with these columns of the log; None: all but ``dlsn``.

    Args:
        decrypts: The reader decrypts the records.

    Raises:
        ValueError: There is no such column, or it is named twice.
    """

    def __init__(self, columns: Sequence[str] | None, *, decrypts: bool = False) -> None:
        if isinstance(columns, str):
            raise ValueError(f"columns={columns!r}: give a list of names")
        self._names = COLUMNS + ATTRIBUTES if columns is None else tuple(columns)
        if len(set(self._names)) < len(self._names) or not self._names:
            raise ValueError(f"columns={list(self._names)}: name one or more, each once")
        self.schema: pa.Schema = schema_of(self._names)
        self._decrypts = decrypts

    def convert(self, records: RecordBatch) -> pa.RecordBatch:
        """The records as arrays.

        Raises:
            EncryptionKeyError: One is encrypted, and the reader has no key.
        """
        batch = records.to_arrow(columns=self._names)
        if not self._decrypts:
            self._check_opened(records, batch)
        return batch

    def _check_opened(self, records: RecordBatch, batch: pa.RecordBatch) -> None:
        suspects: list[int] = []
        if "payload" in self._names:
            suspects = pc.indices_nonzero(pc.starts_with(batch["payload"], SEALED_MAGIC)).to_pylist()
        elif not set(ATTRIBUTES).isdisjoint(self._names) and records.has_sealed_attributes:
            suspects = list(range(len(records)))
        for at in suspects:
            if (key_id := sealed_with(bytes(records.payload(at)))) is not None:
                raise EncryptionKeyError(key_id, f"the record at {records.dlsn(at)} is encrypted with it")
