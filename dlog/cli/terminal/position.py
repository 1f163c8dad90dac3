"""Positions in a log as text on the command line, and records as JSON documents.

====================  =========================================================
``earliest``          the first record that is not truncated
``latest``            after the last record: only records written from now on
``7:42:0``            a DLSN: segment, entry, slot; or another form that ``DLSN.parse`` reads
``123456``            the first record with at least this transaction id
``2026-11-01T12:00``  a date and time (local time without an offset), for a log whose transaction ids are
                      milliseconds since 1970; a writer without explicit ids uses those
====================  =========================================================
"""

from __future__ import annotations

import base64
import datetime
import enum
from typing import Any

import attrs
import click

import dlog
from dlog.read.positioning import txid_at

_TXID_MAX = 2**63 - 2

Position = dlog.DLSN | int | dlog.Start


def position_option(context: click.Context, parameter: click.Parameter, text: str | None) -> Position | None:
    """A click callback: convert the text of an option to a position; None stays None."""
    try:
        return None if text is None else parse_position(text)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from None


def dlsn_option(context: click.Context, parameter: click.Parameter, text: str | None) -> dlog.DLSN | None:
    """A click callback: convert the text of an option to a DLSN; None stays None."""
    position = position_option(context, parameter, text)
    if position is None or isinstance(position, dlog.DLSN):
        return position
    raise click.BadParameter("give a DLSN such as 7:42:0", context, parameter)


def parse_position(text: str) -> Position:
    """The position that a text denotes; see the module's table.

    Raises:
        ValueError: The text denotes no position.
    """
    match text.strip().lower():
        case "earliest":
            return dlog.EARLIEST
        case "latest":
            return dlog.LATEST
    if text.strip().isdecimal():  # ``int`` raises ``ValueError`` for too many digits
        txid = int(text)
        if txid > _TXID_MAX:
            raise ValueError(f"transaction id {txid} is above the maximum, {_TXID_MAX}")
        return txid
    try:
        return dlog.DLSN.parse(text)
    except ValueError:
        pass  # a date, or no position
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is no position; give earliest, latest, a DLSN such as 7:42:0, a transaction id,"
            " or a date such as 2026-11-01T12:00"
        ) from None
    return max(0, txid_at(moment.astimezone()))


def record_document(record: dlog.Record) -> dict[str, object]:
    """A record as a JSON document."""
    document: dict[str, object] = {
        "dlsn": str(record.dlsn),
        "txid": record.txid,
        "sequence_id": record.sequence_id,
    }
    if record.key is not None:
        document |= payload_document(record.key, "key")
    if record.headers:
        document["headers"] = [
            {"name": name} | payload_document(value, "value") for name, value in record.headers.items()
        ]
    return document | payload_document(record.payload)


def payload_document(payload: bytes, name: str = "payload") -> dict[str, object]:
    """A payload as a JSON document: ``payload`` if it is UTF-8 text, else ``payload_base64``."""
    try:
        return {name: payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(payload).decode("ascii")}


def described(description: Any) -> dict[str, Any]:
    """A description as JSON values: field names unchanged, DLSNs as ``7:42:0``, enums by lower-case name."""
    return attrs.asdict(description, value_serializer=_plain)


def _plain(_instance: Any, _field: Any, value: Any) -> Any:
    if isinstance(value, dlog.DLSN):
        return str(value)
    return value.name.lower() if isinstance(value, enum.Enum) else value
