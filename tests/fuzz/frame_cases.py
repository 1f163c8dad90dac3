"""Requests for the sweep of a bookie's port: each operation, each subset of its optional fields, bad values.

Inside: the shapes, the values, the bytes of a request, what its answer may be.
Not inside: ledgers, connections and what is checked (``frame_world``), the loop (``frame_sweep``).
Always: a generator decides everything, so one seed gives the same frames again. The bytes are made by hand:
our encoders cannot write most of them.

Source: docs/protocol.md 2 and 3; the answers of Apache's bookies in tests/golden/bookkeeper.
"""

from __future__ import annotations

import enum
import itertools
import random
import struct
from collections.abc import Iterator, Mapping, Sequence

import attrs

from ledger.codes import OPCODES_V2, Code, Operation
from ledger.digest import DigestType, EntryCodec, master_key

PASSWORD = b"of the sweep"
KEY = master_key(PASSWORD)
WRONG_KEY = master_key(b"of another ledger")
ENTRIES = EntryCodec(DigestType.CRC32C, PASSWORD)
PLUGIN = "steps"
LAST_ENTRY_ID = 3  # of each ledger that has entries
NUMBERS = (0, -1, 1 << 31, (1 << 63) - 1, -(1 << 63), 10**10, (1 << 32) - 1, 7)
TEXTS = (b"", b"\xff\xfe", b"\xc0\x80", b"x" * 3000, b"\n\x1b[2J", PLUGIN.encode())


class State(enum.Enum):
    """What the bookie and the metadata store know of a ledger before its request."""

    ABSENT = "absent"
    EMPTY = "empty"
    OPEN = "open, without LAC"
    OPEN_WITH_LAC = "open, with LAC"
    EXPLICIT_LAC = "open, with explicit LAC"
    FENCED_EMPTY = "fenced, empty"
    FENCED = "fenced"
    CLOSED = "closed"
    DELETED = "deleted"
    DELETED_FENCED = "fenced, then deleted"


WITHOUT_ENTRIES = frozenset(
    {State.ABSENT, State.EMPTY, State.FENCED_EMPTY, State.DELETED, State.DELETED_FENCED}
)
WITHOUT_LEDGER = frozenset({State.ABSENT, State.DELETED, State.DELETED_FENCED})
FENCED = frozenset({State.FENCED_EMPTY, State.FENCED, State.CLOSED})


class Ending(enum.Enum):
    """What a request may lead to on a connection that may send it."""

    ANSWERED = "one answer; the connection stays open"
    SILENT = "an answer, or none: a hint, or a long poll that waits"
    CLOSES = "the connection closes"
    ANY = "an answer, or the connection closes"


@attrs.frozen
class Shape:
    """An operation of one protocol version with a subset of its optional fields, on a ledger in one state."""

    version: int  # 2: packed structs, 3: protobuf
    operation: Operation
    fields: tuple[str, ...]
    state: State

    def __str__(self) -> str:
        more = "".join(f" +{field}" for field in self.fields)
        return f"v{self.version} {self.operation.name}{more}, ledger {self.state.value}"


@attrs.frozen
class Case:
    """One request."""

    shape: Shape
    ledger_id: int  # its own, in the state of the shape; the frame may name another
    frame: bytes = attrs.field(repr=False)  # with its length
    ending: Ending
    named_ledger_id: int
    named_entry_id: int
    transaction_id: int = 0
    codes: frozenset[Code] | None = None  # None: any. Otherwise as Apache's bookie answers
    is_plain: bool = False  # all its values are good ones
    lac: int | None = None  # of the entry that it adds
    writes_lac: bool = False

    def __str__(self) -> str:
        return (
            f"{self.shape}: {self.frame.hex() if len(self.frame) < 300 else self.frame[:300].hex() + '...'}"
        )


# Protobuf by hand


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, value: int | bytes) -> bytes:
    """One field: a number as varint, bytes with their length."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "big") + message


# Shapes

_EVERY_V3 = ("priority", "requestContext")
_OPTIONAL_V3: Mapping[Operation, tuple[str, ...]] = {
    Operation.READ_ENTRY: ("masterKey", "previousLAC", "timeOut", "flag", "wantsLac", "repliesMax"),
    Operation.ADD_ENTRY: ("writeFlags", "flag"),
    Operation.WRITE_LAC: ("hint",),
    Operation.GET_BOOKIE_INFO: ("requested", "features"),
    **dict.fromkeys(
        (
            Operation.READ_LAC,
            Operation.FORCE_LEDGER,
            Operation.LIST_ENTRIES,
            Operation.AUTH,
            Operation.START_TLS,
        ),
        (),
    ),
    **dict.fromkeys((Operation.RANGE_READ_ENTRY, Operation.RANGE_ADD_ENTRY, Operation.BATCH_READ_ENTRY), ()),
}
_FLAGS_V2 = {"fence": 1, "recovery": 2, "highPriority": 4, "locate": 0x4000, "unknownFlag": 8}
_OPTIONAL_V2: Mapping[Operation, tuple[str, ...]] = {
    Operation.ADD_ENTRY: tuple(_FLAGS_V2),
    Operation.READ_ENTRY: (*_FLAGS_V2, "key"),
    Operation.BATCH_READ_ENTRY: (*_FLAGS_V2, "key"),
    Operation.AUTH: (),
}
_BODY = {
    Operation.READ_ENTRY: 100,
    Operation.ADD_ENTRY: 101,
    Operation.AUTH: 102,
    Operation.WRITE_LAC: 103,
    Operation.READ_LAC: 104,
    Operation.GET_BOOKIE_INFO: 105,
    Operation.START_TLS: 106,
    Operation.FORCE_LEDGER: 107,
    Operation.LIST_ENTRIES: 108,
}
_NEED_LEDGER = frozenset(_BODY) - {Operation.AUTH, Operation.GET_BOOKIE_INFO, Operation.START_TLS}


def _subsets(fields: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(fields) + 1):
        yield from itertools.combinations(fields, size)


def shapes() -> list[Shape]:
    """Every one, in a fixed order."""
    found = []
    for version, table, more in ((2, _OPTIONAL_V2, ()), (3, _OPTIONAL_V3, _EVERY_V3)):
        for operation, optional in table.items():
            states = list(State)
            if operation in (Operation.AUTH, Operation.START_TLS, Operation.GET_BOOKIE_INFO) or (
                version == 3 and operation not in _BODY
            ):
                states = [State.ABSENT]
            found += [
                Shape(version, operation, fields, state)
                for state in states
                for fields in _subsets((*optional, *more))
            ]
    return found


# Values

_BAD = (  # how a frame differs from what a client would send
    *("nothing",) * 6,
    *("numbers",) * 4,
    *("key", "body", "texts"),
    *("unknown enum", "no required field", "wrong nesting", "unknown operation", "unknown version", "cut"),
)


class Draw:
    """The values of one request. ``bad`` says what is wrong with them."""

    def __init__(self, rng: random.Random, ledger_id: int, bad: str) -> None:
        self._rng, self.bad, self._ledger_id = rng, bad, ledger_id
        self.is_plain = bad == "nothing"

    def number(self, good: int) -> int:
        return self._rng.choice(NUMBERS) if self.bad == "numbers" and self._rng.random() < 0.5 else good

    def key(self) -> bytes:
        if self.bad != "key":
            return KEY
        return self._rng.choice((WRONG_KEY, b"", KEY[:19], KEY + b"x"))

    def key_v2(self) -> bytes:
        return WRONG_KEY if self.bad == "key" else KEY

    def text(self, good: bytes) -> bytes:
        return self._rng.choice(TEXTS) if self.bad == "texts" else good

    def body(self, ledger_id: int, entry_id: int, lac: int) -> bytes:
        body = ENTRIES.pack(_signed(ledger_id), _signed(entry_id), _signed(lac), 5, b"hello")
        if self.bad == "body":
            return self._rng.choice(
                (b"", body[:8], body[:31], body[:33], body[8:], bytes(len(body)), body * 40)
            )
        return body


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def draw_case(rng: random.Random, shape: Shape, ledger_id: int) -> Case:
    """One request of this shape. ``ledger_id`` is in the state of the shape."""
    draw = Draw(rng, ledger_id, rng.choice(_BAD))
    return (_case_v2 if shape.version == 2 else _case_v3)(rng, draw, shape, ledger_id)


def _entry_ids(rng: random.Random, draw: Draw, shape: Shape) -> tuple[int, int]:
    """The entry that the request names, and the LAC in it if it adds one."""
    last = -1 if shape.state in WITHOUT_ENTRIES else LAST_ENTRY_ID
    if shape.operation is Operation.ADD_ENTRY:
        entry_id = draw.number(last + 1)
        return entry_id, draw.number(last)
    return draw.number(rng.choice((0, -1, LAST_ENTRY_ID, LAST_ENTRY_ID + 4))), -1


def _case_v2(rng: random.Random, draw: Draw, shape: Shape, own: int) -> Case:
    ledger_id = draw.number(own)
    entry_id, lac = _entry_ids(rng, draw, shape)
    opcode = OPCODES_V2[shape.operation]
    flags = sum(_FLAGS_V2[name] for name in shape.fields if name in _FLAGS_V2)
    version = 2
    ending = Ending.ANSWERED
    if draw.bad == "unknown version":
        version, ending = rng.choice((0, 1, 3, 7, 8, 10, 255)), Ending.ANY
    if draw.bad == "unknown operation":
        opcode, ending = rng.choice((0, 4, 5, 6, 8, 99, 255)), Ending.CLOSES
    match shape.operation:
        case Operation.ADD_ENTRY:
            body = draw.key_v2() + draw.body(ledger_id, entry_id, lac)
        case Operation.READ_ENTRY:
            body = struct.pack(">qq", ledger_id, entry_id)
        case Operation.BATCH_READ_ENTRY:
            count = draw.number(10)
            counts = (rng.getrandbits(63), max(-(1 << 31), min(count, (1 << 31) - 1)), draw.number(5_000_000))
            body = struct.pack(">qqqiq", ledger_id, entry_id, *counts)
        case _:
            body = field(1, draw.text(PLUGIN.encode())) + field(2, draw.text(b"token"))
            ending = Ending.ANY
    if shape.operation in (Operation.READ_ENTRY, Operation.BATCH_READ_ENTRY):
        if "key" in shape.fields:
            body += draw.key_v2()
        elif "fence" in shape.fields:
            ending = Ending.CLOSES if version == 2 else Ending.ANY
    if draw.bad == "cut":
        body, ending = body[: rng.randrange(len(body))], Ending.ANY
    if draw.bad == "body" and shape.operation is Operation.ADD_ENTRY and len(body) < 36:
        ending = Ending.ANY
    named = (ledger_id, entry_id)
    if shape.operation is Operation.ADD_ENTRY and len(body) >= 36:
        named = struct.unpack_from(">qq", body, 20)  # those of the body, whatever it is, are repeated
    header = opcode if version == 0 else version << 24 | opcode << 16 | flags
    is_plain = draw.is_plain and ending is Ending.ANSWERED
    return Case(
        shape,
        own,
        framed(header.to_bytes(4, "big") + body),
        ending,
        *named,
        codes=_codes(shape, entry_id) if is_plain else None,
        is_plain=is_plain,
        lac=lac if shape.operation is Operation.ADD_ENTRY and ending is Ending.ANSWERED else None,
    )


def _case_v3(rng: random.Random, draw: Draw, shape: Shape, own: int) -> Case:
    ledger_id = draw.number(own)
    entry_id, lac = _entry_ids(rng, draw, shape)
    operation, transaction_id = shape.operation, rng.getrandbits(63)
    number, version, ending = operation.value, 3, Ending.ANSWERED
    if draw.bad == "unknown operation":
        number, ending = rng.choice((0, 13, 77, 1 << 31, -1)), Ending.CLOSES
    elif draw.bad == "unknown version":
        version, ending = rng.choice((0, 1, 2, 4, 1 << 31)), Ending.ANY
    header = field(1, version) + field(2, number) + field(3, transaction_id)
    if "priority" in shape.fields:
        header += field(4, draw.number(100))
    fields, values = _fields_v3(rng, draw, shape, ledger_id, entry_id, lac)
    if draw.bad == "unknown enum":
        fields += field(100, rng.choice((0, 3, 77, -1)))
        ending = Ending.ANY if operation is Operation.AUTH else Ending.SILENT
    if draw.bad == "no required field" and operation in _BODY:
        fields = field(1, PLUGIN.encode()) if operation is Operation.AUTH else field(9, 1)
        if operation in _NEED_LEDGER or operation is Operation.AUTH:
            ending = Ending.CLOSES
    if draw.bad == "wrong nesting":
        fields, ending = _nested(rng, fields), Ending.ANY
    message = field(1, header)
    if operation in _BODY:
        message += field(_BODY[operation], fields)
    if "requestContext" in shape.fields:
        message += field(200, field(1, draw.text(b"key")) + field(2, draw.text(b"value"))) * rng.choice(
            (1, 3)
        )
    if draw.bad == "cut":
        message, ending = message[: rng.randrange(1, len(message))], Ending.ANY
    if draw.bad == "texts":
        ending = Ending.ANY
    if operation in (Operation.AUTH, Operation.START_TLS) and ending is Ending.ANSWERED:
        ending = Ending.ANY
    if "hint" in shape.fields or ("timeOut" in shape.fields and "previousLAC" in shape.fields):
        ending = Ending.SILENT if ending is Ending.ANSWERED else ending
    is_plain = draw.is_plain and ending in (Ending.ANSWERED, Ending.SILENT)
    named = ledger_id if operation in _NEED_LEDGER else own
    return Case(
        shape,
        own,
        framed(message),
        ending,
        named,
        entry_id,
        transaction_id,
        _codes(shape, entry_id, values) if is_plain else None,
        is_plain,
        lac if operation is Operation.ADD_ENTRY and ending is Ending.ANSWERED else None,
        writes_lac=operation is Operation.WRITE_LAC,
    )


def _fields_v3(
    rng: random.Random, draw: Draw, shape: Shape, ledger_id: int, entry_id: int, lac: int
) -> tuple[bytes, Mapping[str, int]]:
    """The body of the operation; the numbers of its optional fields."""
    values = {
        "previousLAC": draw.number(rng.choice((-1, 0, LAST_ENTRY_ID - 1, 50))),
        "timeOut": draw.number(rng.choice((0, 1, 1000))),
        "flag": rng.choice((1, 2)),
        "wantsLac": 1,
        "repliesMax": draw.number(rng.choice((1, 2))),
        "writeFlags": draw.number(1),
        "requested": draw.number(rng.choice((1, 2, 3))),
    }
    match shape.operation:
        case Operation.READ_ENTRY:
            out = field(1, ledger_id) + field(2, entry_id)
            out += field(3, draw.key()) if "masterKey" in shape.fields else b""
            numbers = {"previousLAC": 4, "timeOut": 5, "flag": 100, "wantsLac": 1000, "repliesMax": 1001}
        case Operation.ADD_ENTRY:
            values["flag"] = 1
            out = field(1, ledger_id) + field(2, entry_id) + field(3, draw.key())
            out += field(4, draw.body(draw.number(ledger_id), entry_id, lac))
            numbers = {"writeFlags": 5, "flag": 100}
        case Operation.WRITE_LAC:
            written = draw.number(LAST_ENTRY_ID - 1)
            body = ENTRIES.pack_lac(_signed(ledger_id), _signed(written))
            body = rng.choice((b"", body[:8], body[:15], body * 9)) if draw.bad == "body" else body
            out = field(1, ledger_id) + field(2, written) + field(3, draw.key()) + field(4, body)
            values["hint"] = 1
            numbers = {"hint": 1000}
        case Operation.GET_BOOKIE_INFO:
            values["features"] = 1
            out, numbers = b"", {"requested": 1, "features": 1000}
        case Operation.AUTH:
            return field(1, draw.text(PLUGIN.encode())) + field(2, draw.text(b"token")), values
        case Operation.START_TLS:
            return b"", values
        case _:
            return field(1, ledger_id), values
    out += b"".join(field(numbers[name], values[name]) for name in shape.fields if name in numbers)
    return out, {name: values[name] for name in shape.fields if name in values}


def _nested(rng: random.Random, fields: bytes) -> bytes:
    """A message where a number belongs, groups that never end, the message within itself."""
    return rng.choice(
        (
            field(1, fields) + fields,
            fields + b"\x0b" * 120,  # groups begin, none ends
            fields + field(4, field(4, field(4, fields))),
            field(100, fields) + fields,
            fields + field(1 << 28, fields),
            fields + b"\x0c",  # a group ends that never began
        )
    )


# The answers of Apache's bookies


def _codes(shape: Shape, entry_id: int, values: Mapping[str, int] | None = None) -> frozenset[Code] | None:
    """The codes that the golden conversations show for good values; None if they show none."""
    state, fields, values = shape.state, shape.fields, values or {}
    match shape.operation:
        case Operation.ADD_ENTRY:
            if state is State.DELETED_FENCED:
                return frozenset({Code.FENCED})  # Apache forgets the fence; docs/protocol.md 9
            recovers = "flag" in fields or "recovery" in fields
            return frozenset({Code.FENCED if state in FENCED and not recovers else Code.OK})
        case Operation.READ_ENTRY:
            return _read_codes(shape, entry_id, values)
        case Operation.BATCH_READ_ENTRY if shape.version == 3:
            return frozenset({Code.BAD_REQUEST})
        case Operation.BATCH_READ_ENTRY if "fence" not in fields:
            return _found(state, entry_id)
        case Operation.WRITE_LAC if "hint" not in fields:
            return frozenset({Code.NO_LEDGER if state is State.DELETED_FENCED else Code.OK})
        case Operation.READ_LAC if state in WITHOUT_LEDGER:
            return frozenset({Code.NO_ENTRY})
        case Operation.READ_LAC if state not in WITHOUT_ENTRIES:
            return frozenset({Code.OK})
        case Operation.FORCE_LEDGER | Operation.GET_BOOKIE_INFO:
            return frozenset({Code.OK})
        case Operation.LIST_ENTRIES:
            return frozenset({Code.NO_LEDGER if state in WITHOUT_LEDGER else Code.OK})
        case Operation.RANGE_READ_ENTRY | Operation.RANGE_ADD_ENTRY:
            return frozenset({Code.BAD_REQUEST})
    return None


def _found(state: State, entry_id: int) -> frozenset[Code]:
    if state in WITHOUT_LEDGER:
        return frozenset({Code.NO_LEDGER})
    there = state not in WITHOUT_ENTRIES and entry_id <= LAST_ENTRY_ID
    return frozenset({Code.OK if there else Code.NO_ENTRY})


def _read_codes(shape: Shape, entry_id: int, values: Mapping[str, int]) -> frozenset[Code] | None:
    fields, state = shape.fields, shape.state
    if "fence" in fields or values.get("flag") == 1:
        if shape.version == 3 and "masterKey" not in fields:
            return frozenset({Code.UNAUTHORIZED})
        if state is State.DELETED_FENCED:
            return frozenset({Code.NO_LEDGER})
        there = state not in WITHOUT_ENTRIES and entry_id <= LAST_ENTRY_ID
        return frozenset({Code.OK if there else Code.NO_ENTRY})
    if "previousLAC" not in fields:
        return _found(state, entry_id)
    if values.get("flag") == 2 and entry_id != -1:
        return frozenset({Code.BAD_REQUEST})
    return frozenset({Code.NO_LEDGER}) if state in WITHOUT_LEDGER else None
