"""Where each stream of a query starts or ends, as the options say it.

Inside: parsing ``startingOffsets``, ``startingDlsn``, ``startingTxId``, ``startingTimestamp``,
``startingCursor``, and the same for ends. Not inside: finding the position of a transaction id or a cursor
(``client``).
Always: at most one kind of place is given, apart from a cursor with ``startingOffsets`` for the streams that
lack the cursor; a place of a stream that the query does not read is an error.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping

import attrs

from dlog import DLSN
from dlog.format.record import TXID_MAX
from spark_integration.errors import OffsetFormatError, OptionError
from spark_integration.offsets import (
    BEFORE_EVERYTHING,
    Position,
    from_offset,
    identities_in,
    just_before,
    position_from_list,
)

EARLIEST = "earliest"
LATEST = "latest"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@attrs.frozen
class Txid:
    """As a start: before the first record with at least this id. As an end: after the last of at most it."""

    txid: int


Place = Position | Txid | str  # LATEST; the earliest place is BEFORE_EVERYTHING


@attrs.frozen
class Places:
    """The place of each stream. It is picklable, because Spark sends it to other processes."""

    everywhere: Place | None  # of the streams that are not named; None if each must be named
    by_stream: tuple[tuple[str, Place], ...] = ()
    cursor: str | None = None  # a stream that has this cursor takes its position instead
    logs: tuple[tuple[str, str], ...] = ()  # the identities of the logs that the positions are of, if known

    def of(self, stream: str) -> Place:
        """The place of a stream; BEFORE_EVERYTHING if neither it nor all streams were given one."""
        found = dict(self.by_stream).get(stream, self.everywhere)
        return BEFORE_EVERYTHING if found is None else found

    def check(self, side: str, names: tuple[str, ...]) -> None:
        """Check the streams that the JSON of an option names.

        Args:
            side: ``starting`` or ``ending``, for the message.
            names: The streams of the query; empty if they are found while it runs.

        Raises:
            OffsetFormatError: It lacks a stream of the query, or names another one, or one position is for
                several streams.
        """
        if isinstance(self.everywhere, Position) and self.everywhere.segment and len(names) != 1:
            raise OffsetFormatError(
                f"option {side}Offsets: one position cannot be that of several streams; give"
                ' {"stream": [segment, entry, slot], ...}'
            )
        if not names:
            return
        if self.everywhere is None and {stream for stream, _ in self.by_stream} != set(names):
            raise OffsetFormatError(
                f"the options {side}... name places of {sorted(dict(self.by_stream))}, but the query reads"
                f" {sorted(names)}; give a place for each of them"
            )

    @property
    def moves(self) -> bool:
        """True if the places, resolved later, may be others: a restart must not resolve them again."""
        every = [place for _, place in self.by_stream]
        if self.everywhere is not None:
            every.append(self.everywhere)
        return self.cursor is not None or not all(isinstance(place, Position) for place in every)


def parse_places(options: Mapping[str, str], side: str, default: str) -> Places:
    """The places of one side of the query: ``starting`` or ``ending``.

    Args:
        options: With names in lower case.
        default: EARLIEST or LATEST.

    Raises:
        OptionError: Two kinds of places are given, or a value is invalid.
        OffsetFormatError: A position is invalid.
    """
    kinds: dict[str, Callable[[str, object], Place]] = {
        f"{side}Offsets": _offset,
        f"{side}Dlsn": _dlsn,
        f"{side}TxId": _txid,
        f"{side}Timestamp": _timestamp,
    }
    given = [name for name in kinds if name.lower() in options]
    if len(given) > 1:
        raise OptionError(f"options {' and '.join(given)} exclude each other; remove all but one")
    cursor = options.get(f"{side}Cursor".lower())
    if cursor is not None and given and given != [f"{side}Offsets"]:
        raise OptionError(f"options {given[0]} and {side}Cursor exclude each other; remove one of them")
    name = given[0] if given else f"{side}Offsets"
    parse = kinds[name]
    text = options.get(name.lower(), default)
    value = _json(text)
    if isinstance(value, dict) and isinstance(value.get("streams"), dict):  # no place of a stream is one
        if not name.endswith("Offsets"):
            raise OptionError(f"option {name} takes no offset of a checkpoint or a report; use {side}Offsets")
        positions, logs = from_offset(value), identities_in(value)
        return Places(None, tuple(sorted(positions.items())), cursor, tuple(sorted(logs.items())))
    if isinstance(value, dict):
        by_stream = tuple(sorted((stream, parse(name, each)) for stream, each in value.items()))
        return Places(None, by_stream, cursor)
    return Places(parse(name, value), (), cursor)


def _json(text: str) -> object:
    """The JSON of a text; a text that is no list, object, number or string is itself."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, bool | None) else value


def _offset(option: str, value: object) -> Place:
    if value == EARLIEST and option.startswith("starting"):
        return BEFORE_EVERYTHING
    if value == LATEST:
        return LATEST
    if isinstance(value, list):
        return position_from_list(value)
    if isinstance(value, str):
        try:
            dlsn = DLSN.parse(value)
        except ValueError:
            pass  # the message below names what can be given
        else:
            return position_from_list([dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id])
    keywords = "earliest, latest," if option.startswith("starting") else "latest,"
    raise OffsetFormatError(
        f"option {option}: {value!r} is neither a keyword nor a position; give {keywords} a position such as"
        " 7:42:0, or an offset of a checkpoint or a report of progress"
    )


def _dlsn(option: str, value: object) -> Place:
    position = _offset(option, value)
    if not isinstance(position, Position) or min(position.entry, position.slot) < 0:
        raise OffsetFormatError(
            f"option {option}: {value!r} is no position of a record; give one such as 7:42:0"
        )
    is_start = option.startswith("starting")
    return just_before(position.segment, position.entry, position.slot) if is_start else position


def _txid(option: str, value: object) -> Place:
    if type(value) is not int or not 0 <= value < TXID_MAX:
        raise OptionError(f"option {option} must be a transaction id of at least 0, not {value!r}")
    return Txid(value)


def _timestamp(option: str, value: object) -> Place:
    if type(value) is int:
        return _txid(option, value)
    try:
        moment = datetime.datetime.fromisoformat(str(value))
    except ValueError:
        raise OptionError(
            f"option {option} must be a date or a time such as 2026-11-01T08:00:00+00:00, or milliseconds"
            f" since 1970, not {value!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return _txid(option, (moment - _EPOCH) // datetime.timedelta(milliseconds=1))
