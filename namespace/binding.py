"""The stored link from a namespace to the cluster that holds its ledgers.

The data of the namespace's node has three lines: ``1`` (format version), ``BKDL`` (type), and JSON as Thrift
writes a struct: field id to {type tag: value}, ascending ids, no spaces, unset fields left out.

id  tag  field
 1  str  ZooKeeper of the ledger cluster, for writers; required
 2  str  ledgers root path; required
 3  tf   sanity check of transaction ids (bool as 0 or 1; always written, never used)
 4  tf   encode the region id in segment metadata (always written)
 5  str  as 1, for readers; default 1
 6  str  ZooKeeper of the logs, for writers; default the URI's
 7  str  as 6, for readers; default 6
 8  str  relative path of the access control tree
 9  i64  first log segment's sequence number; default 1
10  tf   federated namespace; default false

Source: DistributedLog, BKDLConfig.java, metadata.thrift; Thrift's TJSONProtocol.
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from namespace.errors import LogMetadataError
from namespace.segments.segment import FIRST_SEGMENT_SEQNO

_HEADER = "1\nBKDL\n"
_FIELDS = {  # id: (attribute, tag)
    1: ("bk_hosts", "str"),
    2: ("ledgers_root", "str"),
    3: ("sanity_check_txid", "tf"),
    4: ("encode_region_id", "tf"),
    5: ("bk_hosts_for_reader", "str"),
    6: ("dl_hosts_for_writer", "str"),
    7: ("dl_hosts_for_reader", "str"),
    8: ("acl_root_path", "str"),
    9: ("first_segment_seqno", "i64"),
    10: ("federated", "tf"),
}
_TYPES: dict[str, type] = {"str": str, "tf": int, "i64": int}


@attrs.frozen(kw_only=True)
class Binding:
    """A stored binding. None means that the field is left out. Hosts are ZooKeeper connect strings."""

    bk_hosts: str
    ledgers_root: str
    sanity_check_txid: bool = True
    encode_region_id: bool = False
    bk_hosts_for_reader: str | None = None
    dl_hosts_for_writer: str | None = None
    dl_hosts_for_reader: str | None = None
    acl_root_path: str | None = None
    first_segment_seqno: int | None = None
    federated: bool | None = None

    @property
    def segment_seqno_first(self) -> int:
        """The sequence number of the first segment of a new log."""
        return FIRST_SEGMENT_SEQNO if self.first_segment_seqno is None else self.first_segment_seqno

    @property
    def reader_bk_hosts(self) -> str:
        """The ledger cluster's ZooKeeper, for readers."""
        return self.bk_hosts_for_reader or self.bk_hosts


def new_binding(hosts: str, ledgers_root: str) -> Binding:
    """The binding that an administrator's ``bind`` stores if logs and ledgers share one ZooKeeper."""
    return Binding(
        bk_hosts=hosts,
        ledgers_root=ledgers_root,
        bk_hosts_for_reader=hosts,
        dl_hosts_for_writer=hosts,
        dl_hosts_for_reader=hosts,
    )


def encode_binding(binding: Binding) -> bytes:
    """The bytes to store."""
    fields = {}
    for field_id, (attribute, tag) in _FIELDS.items():
        value = getattr(binding, attribute)
        if value is not None:
            fields[str(field_id)] = {tag: int(value) if tag == "tf" else value}
    body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return (_HEADER + body).encode("utf-8")


def decode_binding(data: bytes) -> Binding:
    """Read a stored binding. Fields that this release does not know are ignored.

    Raises:
        LogMetadataError: Another version or type, other JSON, or a required field is missing.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise _refusal(data, "it is not UTF-8") from exc
    version, _, rest = text.partition("\n")
    kind, _, body = rest.partition("\n")
    if version != "1":
        raise _refusal(data, f"format version {version[:20]!r} is not 1")
    if kind != "BKDL":
        raise _refusal(data, f"type {kind[:20]!r} is not 'BKDL'")
    try:
        fields = json.loads(body.replace("\n", ""))
    except (ValueError, RecursionError) as exc:
        raise _refusal(data, "its third line is not JSON") from exc
    if not isinstance(fields, dict):
        raise _refusal(data, "its JSON is not an object")
    values: dict[str, Any] = {}
    for field_id, (attribute, tag) in _FIELDS.items():
        field = fields.get(str(field_id))
        if field is None:
            continue
        value: Any = field.get(tag) if isinstance(field, dict) else None
        if type(value) is not _TYPES[tag] or (isinstance(value, int) and not -(2**63) <= value < 2**63):
            raise _refusal(data, f"field {field_id} ({attribute}) is not of type {tag}")
        values[attribute] = bool(value) if tag == "tf" else value
    for required in ("bk_hosts", "ledgers_root"):
        if not values.get(required):
            raise _refusal(data, f"required field {required} is missing")
    return Binding(**values)


def _refusal(data: bytes, reason: str) -> LogMetadataError:
    return LogMetadataError(f"namespace binding {data[:120]!r}: {reason}")
