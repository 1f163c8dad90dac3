"""An access control entry: the operations that are denied on a log, and its stored form.

Inside: the values and JSON. Not inside: the nodes (``nodes``).
Always: what is not denied is allowed; data that does not parse is an error, never an entry.

The JSON is that of Thrift: field id to {type: value}. ``tf`` is a boolean, 0 or 1::

    {"1":{"tf":1},"2":{"tf":0},"3":{"tf":0},"4":{"tf":0},"5":{"tf":0}}

Source: DistributedLog, accesscontrol.thrift (AccessControlEntry), ZKAccessControl.java (docs/metadata.md
16.15).
"""

from __future__ import annotations

import enum
import json

import attrs

from namespace.errors import LogMetadataError


class Denial(enum.Enum):
    """An operation that an entry can deny. The value is the id of its field."""

    WRITE = 1  # append records, seal
    TRUNCATE = 2  # truncate, set and apply retention
    DELETE = 3  # delete the log
    ACQUIRE = 4  # become the log's writer, recover or repair it
    RELEASE = 5  # of Apache's write proxy: give the log to another proxy; nothing here asks for it


@attrs.frozen
class AccessControlEntry:
    """The operations that are denied on a log, or by default on every log without an entry.

    Raises:
        TypeError: One of them is no ``Denial``. The entry would not deny it.
    """

    denied: frozenset[Denial] = frozenset()

    def __attrs_post_init__(self) -> None:
        for each in self.denied:
            if not isinstance(each, Denial):
                raise TypeError(f"a denial is a dlog.Denial, such as Denial.WRITE, not {each!r}")


def encode_entry(entry: AccessControlEntry) -> bytes:
    """The bytes to store: all five fields, as Apache's commands write them."""
    fields = {str(each.value): {"tf": int(each in entry.denied)} for each in Denial}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_entry(data: bytes) -> AccessControlEntry:
    """Read a stored entry. Empty data denies nothing; unknown fields are skipped.

    Raises:
        LogMetadataError: It does not parse.
    """
    if not data:
        return AccessControlEntry()
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise LogMetadataError(f"access control entry {data[:120]!r}: it is not JSON") from exc
    if not isinstance(fields, dict):
        raise LogMetadataError(f"access control entry {data[:120]!r}: it is not an object")
    denied = set()
    for each in Denial:
        field = fields.get(str(each.value), {"tf": 0})
        value = field.get("tf", 0) if isinstance(field, dict) else None
        if isinstance(value, bool) or not isinstance(value, int):
            raise LogMetadataError(f"access control entry {data[:120]!r}: field {each.value} is no boolean")
        if value:
            denied.add(each)
    return AccessControlEntry(frozenset(denied))
