"""Typed records: classes of attrs, dataclasses and models of pydantic as payloads, with versions.

Inside: the registry of classes, their payloads and headers, the steps from older versions to newer ones.
Not inside: writing and reading records.
Always: a payload of an unknown class, or of a newer version, is an error; it never becomes a value with
fields left out. The payload says its type and version, with or without headers.

A payload is one JSON object in UTF-8, so that every language reads it:

    {"type": "order", "version": 2, "data": {"id": 7, "amount": 1200, "currency": "EUR"}}

Where a log takes headers, ``schema`` and ``schema-version`` say the same (``order`` and ``2``, as text), so
that a reader chooses records without parsing them. A payload that another program wrote under these headers
may be ``data`` alone. Headers and a payload that contradict each other are an error.

It needs the extra ``typed`` (cattrs), which turns fields into JSON and back: numbers, text, enums, dates,
decimal numbers, lists, dictionaries, and other such classes. A decimal number is text in JSON, so that no
digit is lost. A model of pydantic (2.12 or newer) becomes JSON as pydantic does it, in its strict mode.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Protocol, TypeVar

import attrs

from dlog.errors import DLogError
from dlog.format.record import NO_HEADERS, Record
from ledger.payloads import as_payload
from namespace.dlsn import DLSN

try:
    from cattrs.preconf.json import JsonConverter, make_converter
except ImportError as exc:
    raise ImportError(
        "dlog.typed needs cattrs; install the extra: pip install '.[typed]' in a checkout of DLog"
    ) from exc

Buffer = bytes | bytearray | memoryview
Headers = Mapping[str, Buffer]
C = TypeVar("C")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Upgrade = Callable[[dict[str, Any]], dict[str, Any]]

ENVELOPE = {"type", "version", "data"}
SCHEMA_HEADER, VERSION_HEADER = "schema", "schema-version"
_VERSION = re.compile(rb"[1-9][0-9]{0,99}")
SHOWN_BYTES_MAX = 80  # of a payload in an error


class TypedRecordError(DLogError):
    """A payload is no value of a registered class; the message says what it is, and where it stands.

    ``dlsn`` is the record's position if it was read by ``values``, else None.
    """

    def __init__(self, problem: str, dlsn: DLSN | None = None) -> None:
        super().__init__(problem if dlsn is None else f"record at {dlsn}: {problem}")
        self.problem, self.dlsn = problem, dlsn


@attrs.frozen
class Typed:
    """A record and its value."""

    record: Record
    value: Any

    @property
    def key(self) -> bytes | None:
        """The key of the record; None without one."""
        return self.record.key

    @property
    def headers(self) -> Mapping[str, bytes]:
        """The headers of the record, in order, with those of its schema; read-only."""
        return self.record.headers


class _TakesHeaders(Protocol):
    @property
    def keys_and_headers(self) -> bool: ...


class Appends(_TakesHeaders, Protocol[R_co]):
    """A ``LogWriter`` of ``dlog``, ``dlog.aio`` or ``dlog.blocking``, for ``Registry.append``."""

    def append(
        self,
        payload: bytes,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
    ) -> R_co: ...


class Submits(_TakesHeaders, Protocol[R_co]):
    """A ``LogWriter`` of ``dlog``, ``dlog.aio`` or ``dlog.blocking``, for ``Registry.submit``."""

    def submit(
        self,
        payload: bytes,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
    ) -> R_co: ...


class AppendsMany(_TakesHeaders, Protocol[R_co]):
    """A ``LogWriter`` of ``dlog``, ``dlog.aio`` or ``dlog.blocking``, for ``Registry.append_many``."""

    def append_many(
        self,
        payloads: Iterable[bytes],
        *,
        txids: Iterable[int] | None = None,
        atomic: bool = False,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
    ) -> R_co: ...


@attrs.frozen
class _Entry:
    cls: type
    version: int


class Registry:
    """The classes of an application's records.

        registry = Registry()

        @registry.register("order", version=2)
        @attrs.frozen
        class Order:
            id: int
            amount: int
            currency: str

        @registry.upgrade("order", from_version=1)
        def add_currency(data):
            return {**data, "currency": "EUR"}

        await registry.append(log, Order(7, 1200, "EUR"), key=b"customer-7")

    Args:
        converter: A converter of cattrs with hooks of the application; None: that of ``strict_converter``. It
            must produce what JSON can hold.
        check: Decode each payload before ``encode`` returns it, and compare the value, so that nothing is
            written that cannot be read as it was. It doubles the time of ``encode``.
    """

    def __init__(self, converter: JsonConverter | None = None, *, check: bool = True) -> None:
        self._converter = strict_converter() if converter is None else converter
        self._check = check
        self._by_name: dict[str, _Entry] = {}
        self._names: dict[type, str] = {}
        self._upgrades: dict[tuple[str, int], Upgrade] = {}

    def __repr__(self) -> str:
        classes = ", ".join(f"{name} {entry.version}" for name, entry in sorted(self._by_name.items()))
        return f"<Registry: {classes or 'empty'}>"

    def register(self, name: str, *, version: int = 1) -> Callable[[type[C]], type[C]]:
        """Register a class of attrs, a dataclass or a model of pydantic, as a decorator.

        Args:
            name: The type's name in payloads. It stays when the class is renamed.
            version: Of the class's fields. Raise it when they change, and write an upgrade.

        Raises:
            ValueError: The name or the class is registered already, or the version is no positive number.
            TypeError: It is none of them.
        """
        if version < 1:
            raise ValueError(f"type {name!r}: version {version}; versions begin at 1")

        def register(cls: type[C]) -> type[C]:
            if not (hasattr(cls, "__attrs_attrs__") or dataclasses.is_dataclass(cls) or _is_model(cls)):
                raise TypeError(
                    f"type {name!r}: {cls!r} is no class of attrs, no dataclass and no model of pydantic;"
                    " decorate it with @attrs.frozen or @dataclass"
                )
            if name in self._by_name:
                raise ValueError(f"type {name!r} is registered already, for {self._by_name[name].cls!r}")
            if cls in self._names:
                raise ValueError(f"{cls!r} is registered already, as {self._names[cls]!r}")
            self._by_name[name], self._names[cls] = _Entry(cls, version), name
            return cls

        return register

    def upgrade(self, name: str, *, from_version: int) -> Callable[[Upgrade], Upgrade]:
        """Register the step from a version to the next one, as a decorator.

        The function gets the fields as they are in JSON, and returns those of ``from_version + 1``.

        Raises:
            ValueError: There is such a step already.
        """

        def register(step: Upgrade) -> Upgrade:
            if (name, from_version) in self._upgrades:
                raise ValueError(f"type {name!r} has a step from version {from_version} already")
            self._upgrades[name, from_version] = step
            return step

        return register

    def encode(self, value: Any) -> bytes:
        """The payload of a value.

        Raises:
            TypedRecordError: Its class is not registered, or a field could not be read again, or would come
                back changed. Without the check of ``Registry`` this is not looked at.
        """
        name = self._name_of(value)
        try:
            data = self._converter.unstructure(value)
            payload = json.dumps(
                {"type": name, "version": self._by_name[name].version, "data": data},
                ensure_ascii=False,
                allow_nan=False,
                separators=(",", ":"),
            ).encode()
        except (TypeError, ValueError) as exc:  # also UnicodeEncodeError
            raise TypedRecordError(f"a value of type {name!r} cannot be written as JSON: {exc}") from None
        if self._check and (change := _change(value, self.decode(payload))) is not None:
            raise TypedRecordError(f"a value of type {name!r} would not come back as it was: {change}")
        return payload

    def headers(self, value: Any, others: Headers | None = None) -> dict[str, bytes]:
        """The headers ``schema`` and ``schema-version`` of a value, then the others in their order.

        If the others have these two, as headers of another record that are passed on, those of the value
        replace them.

        Raises:
            TypedRecordError: Its class is not registered.
            TypeError: The content of a header is no buffer.
        """
        name = self._name_of(value)
        version = self._by_name[name].version
        own = {SCHEMA_HEADER: name.encode(), VERSION_HEADER: b"%d" % version}
        rest = {each: as_payload(content) for each, content in (others or {}).items() if each not in own}
        return own | rest

    def append(
        self,
        log: Appends[R],
        value: Any,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
    ) -> R:
        """Append a value, with the headers of its schema if the log takes headers; see ``LogWriter.append``.

        It returns what ``log.append`` does: with ``dlog`` and ``dlog.aio``, ``await`` it.

        Raises:
            TypedRecordError: As ``encode``. Nothing was written.
            The errors of ``LogWriter.append``.
        """
        payload = self.encode(value)
        return log.append(payload, txid=txid, key=key, headers=self._headers(log, value, headers))

    def submit(
        self,
        log: Submits[R],
        value: Any,
        *,
        txid: int | None = None,
        key: Buffer | None = None,
        headers: Headers | None = None,
    ) -> R:
        """As ``append``, by ``LogWriter.submit``; it returns what that does."""
        payload = self.encode(value)
        return log.submit(payload, txid=txid, key=key, headers=self._headers(log, value, headers))

    def append_many(
        self,
        log: AppendsMany[R],
        values: Iterable[Any],
        *,
        txids: Iterable[int] | None = None,
        atomic: bool = False,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers | None] | None = None,
    ) -> R:
        """As ``append``, by ``LogWriter.append_many``; all values are encoded before the first is written.

        Args:
            keys, headers: One for each value; None for a record without.

        Raises:
            ValueError: There are not as many headers as values. Nothing was written.
        """
        values = list(values)
        payloads = [self.encode(value) for value in values]
        given = [None] * len(values) if headers is None else list(headers)
        if len(given) != len(values):
            raise ValueError(f"{len(values)} values: give one mapping of headers for each")
        pairs = zip(values, given, strict=True)
        all_headers = [self._headers(log, value, each) for value, each in pairs]
        return log.append_many(payloads, txids=txids, atomic=atomic, keys=keys, headers=all_headers)

    def _headers(self, log: _TakesHeaders, value: Any, others: Headers | None) -> Headers | None:
        return self.headers(value, others) if log.keys_and_headers else others

    def _name_of(self, value: Any) -> str:
        name = self._names.get(type(value))
        if name is None:
            raise TypedRecordError(f"{type(value).__qualname__} is not registered; see Registry.register")
        return name

    def decode(self, payload: bytes, headers: Mapping[str, bytes] = NO_HEADERS) -> Any:
        """The value of a payload, in the newest version of its class.

        Args:
            headers: Of the record. If they have ``schema`` and ``schema-version``, the payload may be
                the fields alone.

        Raises:
            TypedRecordError: It is no typed record, its headers say another type or version than its payload,
                its type is not registered, its version is newer than the registered one or has no step to it,
                or its fields do not fit.
        """
        name, version, data = _opened(payload, headers)
        entry = self._by_name.get(name)
        if entry is None:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise TypedRecordError(f"its type is {name!r}, which is not registered; registered: {known}")
        if version > entry.version:
            raise TypedRecordError(
                f"type {name!r} has version {version}, but this program knows versions up to {entry.version};"
                " update the program before those that write"
            )
        for step in range(version, entry.version):
            if (name, step) not in self._upgrades:
                raise TypedRecordError(
                    f"type {name!r} has version {version}, and no step leads from {step} to {step + 1}; "
                    "register one with Registry.upgrade"
                )
            data = self._upgrades[name, step](data)
        try:
            return self._converter.structure(data, entry.cls)
        except Exception as exc:  # cattrs raises groups, and what the converters of fields raise
            raise TypedRecordError(
                f"the fields of type {name!r}, version {version}, do not fit: {_reasons(exc)}"
            ) from None

    def values(self, records: AsyncIterable[Record]) -> AsyncIterator[Typed]:
        """The values of a reader of ``dlog`` or ``dlog.aio``, each with its record.

        Raises:
            TypedRecordError: With the position of the record; ``Registry.decode`` says when.
            TypeError: It is no such reader.
        """
        if not isinstance(records, AsyncIterable):
            raise TypeError(f"values takes a reader of dlog or dlog.aio, not {records!r}: use values_of")
        return self._each(records)

    async def _each(self, records: AsyncIterable[Record]) -> AsyncIterator[Typed]:
        async for record in records:
            yield self._typed(record)

    def values_of(self, records: Iterable[Record]) -> Iterator[Typed]:
        """The same for a reader of ``dlog.blocking``, a batch, or a list."""
        if not isinstance(records, Iterable):
            raise TypeError(
                f"values_of takes a reader of dlog.blocking or a list, not {records!r}: use values"
            )
        return map(self._typed, records)

    def _typed(self, record: Record) -> Typed:
        try:
            return Typed(record, self.decode(bytes(record.payload), record.headers))
        except TypedRecordError as exc:
            raise TypedRecordError(exc.problem, record.dlsn) from exc


def strict_converter() -> JsonConverter:
    """A converter of cattrs that takes no value for another: no text for a number, no unknown field."""
    # A field that this program does not know is an error: else reading and writing again would lose it.
    converter = make_converter(forbid_extra_keys=True)
    for kind, allowed in ((int, (int,)), (float, (float, int)), (str, (str,)), (bool, (bool,))):
        converter.register_structure_hook(kind, _checked(kind, allowed))
    converter.register_unstructure_hook(Decimal, str)
    converter.register_structure_hook(Decimal, _checked(Decimal, (str,)))
    converter.register_unstructure_hook_func(
        _is_model, lambda value: value.model_dump(mode="json", by_alias=True)
    )
    converter.register_structure_hook_func(_is_model, _model)
    return converter


def _change(value: Any, found: Any, path: str = "") -> str | None:
    """What differs between a value and what its payload gives; None: nothing.

    A class without an equality of its own is compared by its fields. What cannot be compared is taken as
    equal. No value is shown: one may be a password.
    """
    is_comparable = True
    try:
        if found == value:
            return None
    except Exception:  # such as an array of numpy
        is_comparable = False
    where = f"its field {path!r}" if path else "it"
    if type(found) is not type(value):
        return f"{where} is {type(value).__qualname__}, and would be {type(found).__qualname__}"
    parts = _parts(value)
    if parts is None:
        if not is_comparable or not any("__eq__" in vars(each) for each in type(value).__mro__[:-1]):
            return None
        if isinstance(value, (float, Decimal)) and str(found) == str(value):
            return None  # not a number
        return f"{where} would have another value"
    others = _parts(found) or {}
    for key in (*parts, *(others.keys() - parts.keys())):
        below = f"{path}.{key}" if path else str(key)
        if key not in parts or key not in others:
            return f"its field {below!r} would be {'new' if key in others else 'left out'}"
        if (change := _change(parts[key], others[key], below)) is not None:
            return change
    return None


def _parts(value: Any) -> dict[Any, Any] | None:
    """The fields of a value, by name, index or key; None for one without."""
    if isinstance(value, dict):
        return value
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    cls = type(value)
    if hasattr(cls, "__attrs_attrs__"):
        names = [field.name for field in attrs.fields(cls)]
    elif dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    elif _is_model(cls):
        private = value.__pydantic_private__ or {}
        return {name: getattr(value, name) for name in cls.model_fields} | private
    else:
        return None
    return {name: getattr(value, name) for name in names}


def _is_model(cls: object) -> bool:
    return isinstance(cls, type) and hasattr(cls, "model_validate_json")  # without an import of pydantic


def _model(fields: object, cls: Any) -> Any:
    # Of JSON, as its strict mode takes a text for a date there, and for nothing else.
    return cls.model_validate_json(json.dumps(fields), strict=True, extra="forbid")


def _checked(kind: type, allowed: tuple[type, ...]) -> Callable[[object, type], Any]:
    def structure(value: object, cls: type) -> Any:
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{value!r} is no {kind.__name__}")
        return cls(value)

    return structure


def _opened(payload: bytes, headers: Mapping[str, bytes]) -> tuple[str, int, dict[str, Any]]:
    """The type, the version and the fields that headers and payload say together."""
    named = _named(headers)
    try:
        envelope = json.loads(payload)
    except (ValueError, RecursionError):
        envelope = None
    if named is not None and isinstance(envelope, dict) and envelope.keys() != ENVELOPE:
        return *named, envelope
    if not isinstance(envelope, dict) or envelope.keys() != ENVELOPE:
        shown = payload[:SHOWN_BYTES_MAX]
        raise TypedRecordError(
            f"it is no typed record: {shown!r}{'...' if len(payload) > len(shown) else ''}"
        )
    name, version, data = envelope["type"], envelope["version"], envelope["data"]
    if (
        not isinstance(name, str)
        or not isinstance(version, int)
        or isinstance(version, bool)
        or version < 1
        or not isinstance(data, dict)
    ):
        raise TypedRecordError("its type, version or data has the wrong kind")
    if named is not None and named != (name, version):
        # Neither is taken: a step from the wrong version would change the fields in silence.
        raise TypedRecordError(
            f"its headers say type {named[0]!r}, version {named[1]}, but its payload says type {name!r},"
            f" version {version}"
        )
    return name, version, data


def _named(headers: Mapping[str, bytes]) -> tuple[str, int] | None:
    """The type and the version in the headers; None if one of the two is not there."""
    schema, version = headers.get(SCHEMA_HEADER), headers.get(VERSION_HEADER)
    if schema is None or version is None:
        return None
    try:
        if _VERSION.fullmatch(version) is not None:
            return schema.decode(), int(version)
    except UnicodeDecodeError:
        pass
    raise TypedRecordError(
        f"its headers {SCHEMA_HEADER!r} and {VERSION_HEADER!r} are no type and version:"
        f" {schema[:SHOWN_BYTES_MAX]!r}, {version[:SHOWN_BYTES_MAX]!r}"
    )


def _reasons(exc: Exception) -> str:
    if isinstance(exc, ExceptionGroup):
        return "; ".join(_reasons(each) for each in exc.exceptions)
    if callable(errors := getattr(exc, "errors", None)):  # of pydantic
        return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors())
    notes = [str(note) for note in getattr(exc, "__notes__", ())]
    return " ".join([str(exc) or type(exc).__name__, *(f"({note})" for note in notes)])
