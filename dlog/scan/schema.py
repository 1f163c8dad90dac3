"""The columns of a scan, and records as their arrays.

Inside: ``Converter``: the schema, the arrays of a batch; typed records. Not inside: reading, JSON
(``json_fields``), the arrays of the log's own columns (``dlog.read.arrow_columns``).
Always: every batch has the schema that the scan says; the bytes of an encrypted payload are never given as
the payload.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dlog.encryption import SEALED_MAGIC, sealed_with
from dlog.errors import EncryptionKeyError
from dlog.read.arrow_columns import schema_of
from dlog.read.record_batch import ATTRIBUTES, COLUMNS, RecordBatch
from dlog.scan.errors import PayloadFieldsError
from dlog.scan.json_fields import UnfitError, arrays_of, found_fields, type_of

ADVICE = "name the fields and their types with json={NAME: TYPE}"
# Of dlog.typed, which needs a package that a scan does not.
ENVELOPE = ("type", "version", "data")
SCHEMA_HEADER, VERSION_HEADER = "schema", "schema-version"
TYPED = ("schema", "schema_version")  # the columns
VERSION_DIGITS_MAX = 18  # fewer than those of an int64


class Converter:
    """Makes record batches of Arrow.

    Args:
        columns: Of the log; None: all but ``dlsn``, and without ``payload`` if there are fields.
        fields: Of payloads of JSON, with their types; None: none; True: those of a sample, see ``infer``.
        typed: The payloads are those of ``dlog.typed``.
        decrypts: The reader decrypts the records.

    Raises:
        ValueError: There is no such column or type, or a column is named twice.
    """

    def __init__(
        self,
        columns: Sequence[str] | None,
        fields: Mapping[str, Any] | bool = False,
        *,
        typed: bool = False,
        decrypts: bool = False,
    ) -> None:
        if isinstance(columns, str):
            raise ValueError(f"columns={columns!r}: give a list of names")
        has_fields = typed or fields is not False
        usual = tuple(each for each in COLUMNS + ATTRIBUTES if not has_fields or each != "payload")
        self._names = usual if columns is None else tuple(columns)
        if len(set(self._names)) < len(self._names) or not (self._names or has_fields):
            raise ValueError(f"columns={list(self._names)}: name one or more, each once")
        self._has_fields, self._typed, self._decrypts = has_fields, typed, decrypts
        self._fields: dict[str, pa.DataType] = {}
        self.infers = has_fields and isinstance(fields, bool)
        if not isinstance(fields, bool):
            self._fields = {name: type_of(name, each) for name, each in fields.items()}
        self.schema: pa.Schema = schema_of(self._names)
        self._extend_schema()

    def _extend_schema(self) -> None:
        columns = list(schema_of(self._names))
        if self._typed:
            columns += [pa.field(TYPED[0], pa.string()), pa.field(TYPED[1], pa.int64())]
        taken = {each.name for each in columns}
        for name, kind in self._fields.items():
            columns.append(pa.field(f"payload_{name}" if name in taken else name, kind))
        self.schema = pa.schema(columns)
        if len(set(self.schema.names)) < len(columns):
            raise ValueError(f"two columns have the same name: {', '.join(self.schema.names)}")

    def infer(self, records: RecordBatch) -> None:
        """Take the fields of these records, the first of the scan, and their types.

        Raises:
            PayloadFieldsError: A payload is no JSON object, or the values of a field have no type in common.
            EncryptionKeyError: As ``convert``.
        """
        self._check_opened(records, records.to_arrow(columns=["payload"])["payload"])
        objects = [json.dumps(self._object(records, at)).encode() for at in range(len(records))]
        try:
            self._fields = found_fields(objects)
            self._extend_schema()
        except ValueError as exc:
            raise PayloadFieldsError(f"in the first {len(records):,} records, {exc}; {ADVICE}") from None

    def _object(self, records: RecordBatch, at: int) -> dict[str, Any]:
        try:
            found = json.loads(bytes(records.payload(at)))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise PayloadFieldsError("its payload is no JSON object", records.dlsn(at))
        if self._typed and found.keys() == set(ENVELOPE) and isinstance(found["data"], dict):
            return found["data"]
        return found

    def convert(self, records: RecordBatch) -> pa.RecordBatch:
        """The records as arrays.

        Raises:
            EncryptionKeyError: One is encrypted, and the reader has no key.
            PayloadFieldsError: A payload has not the fields of the scan.
        """
        names = list(self._names)
        if self._has_fields and "payload" not in names:
            names.append("payload")
        batch = records.to_arrow(columns=names)
        if "payload" in names:
            self._check_opened(records, batch["payload"])
        elif not self._decrypts and not set(ATTRIBUTES).isdisjoint(names) and records.has_sealed_attributes:
            self._check_opened(records, records.to_arrow(columns=["payload"])["payload"])
        arrays = [batch[name] for name in self._names]
        if self._typed:
            arrays += self._typed_arrays(records, batch["payload"])
        elif self._has_fields:
            arrays += self._fitting(records, batch["payload"], self._fields).values()
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _fitting(
        self,
        records: RecordBatch,
        payloads: pa.Array,
        fields: Mapping[str, pa.DataType],
        places: Sequence[int] | None = None,
    ) -> dict[str, pa.Array]:
        """The fields of these payloads, which are those of all records, or of the ones at these places."""
        try:
            return arrays_of(payloads, fields)
        except UnfitError as exc:
            wanted = ", ".join(f"{name}: {kind}" for name, kind in self._fields.items())
            problem = f"its payload is no JSON object with the fields {wanted}: {exc.problem}; {ADVICE}"
            at = exc.index if places is None else places[exc.index]
            raise PayloadFieldsError(problem, records.dlsn(at)) from None

    def _typed_arrays(self, records: RecordBatch, payloads: pa.Array) -> list[pa.Array]:
        """The schemas, their versions, and the fields: of ``data``, or of a payload that is data alone."""
        data = pa.struct(list(self._fields.items()))
        envelope = {"type": pa.string(), "version": pa.int64(), "data": data}
        found = self._fitting(records, payloads, envelope)
        names, versions = found["type"].to_pylist(), found["version"].to_pylist()
        has_data = found["data"].is_valid().to_pylist()
        alone: list[int] = []
        for at, headers in enumerate(records.headers()) if records.has_attributes else ():
            if (said := _said(headers)) is None:
                continue
            if names[at] is None or versions[at] is None or not has_data[at]:
                alone.append(at)
                names[at], versions[at] = said
            elif said != (names[at], versions[at]):
                raise PayloadFieldsError(
                    f"its headers say type {said[0]!r}, version {said[1]}, but its payload says type"
                    f" {names[at]!r}, version {versions[at]}",
                    records.dlsn(at),
                )
        are_alone = set(alone)
        for at, pair in enumerate(zip(names, versions, has_data, strict=True)):
            if at not in are_alone and (None in pair or not pair[2]):
                raise PayloadFieldsError("it is no typed record (dlog.typed)", records.dlsn(at))
        arrays = [pc.struct_field(found["data"], [index]) for index in range(len(self._fields))]
        if alone:
            indices = list(range(len(payloads)))
            bare = self._fitting(records, payloads.take(pa.array(alone)), self._fields, alone)
            for row, at in enumerate(alone):
                indices[at] = len(payloads) + row
            both = zip(arrays, bare.values(), strict=True)
            arrays = [pa.concat_arrays(pair).take(pa.array(indices)) for pair in both]
        return [pa.array(names, pa.string()), pa.array(versions, pa.int64()), *arrays]

    def _check_opened(self, records: RecordBatch, payloads: pa.Array) -> None:
        """Raise EncryptionKeyError if the reader could not decrypt a payload."""
        if self._decrypts:
            return
        for at in pc.indices_nonzero(pc.starts_with(payloads, SEALED_MAGIC)).to_pylist():
            if (key_id := sealed_with(bytes(records.payload(at)))) is not None:
                raise EncryptionKeyError(key_id, f"the record at {records.dlsn(at)} is encrypted with it")


def _said(headers: Mapping[str, bytes]) -> tuple[str, int] | None:
    """The type and the version that headers say."""
    schema, version = headers.get(SCHEMA_HEADER), headers.get(VERSION_HEADER)
    if schema is None or version is None or len(version) > VERSION_DIGITS_MAX or not version.isdigit():
        return None
    return schema.decode("utf-8", "replace"), int(version)
