"""Typed records: what is written, what old and new programs read, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pydantic
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import dlog
import dlog.aio
import dlog.blocking
from dlog.typed import Registry, Typed, TypedRecordError, strict_converter


class State(enum.Enum):
    OPEN = "open"
    PAID = "paid"


@attrs.frozen
class Item:
    name: str
    count: int


@attrs.frozen
class Order:
    id: int
    items: list[Item]
    state: State
    weight: float = 0.0
    note: str | None = None
    at: datetime.datetime | None = None
    raw: bytes = b""
    is_gift: bool = False


def registry(**options: Any) -> Registry:
    made = Registry(**options)
    made.register("order")(Order)
    return made


texts = st.text(st.characters(codec="utf-8"))
orders = st.builds(
    Order,
    id=st.integers(),
    items=st.lists(st.builds(Item, name=texts, count=st.integers()), max_size=3),
    state=st.sampled_from(State),
    weight=st.floats(allow_nan=False, allow_infinity=False),
    note=st.none() | st.text(st.characters(codec="utf-8")),
    at=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    raw=st.binary(max_size=20),
    is_gift=st.booleans(),
)


@given(orders)
def test_a_value_comes_back_as_it_was(order: Order) -> None:
    assert registry().decode(registry().encode(order)) == order


def test_a_payload_is_json_that_every_language_reads() -> None:
    payload = registry().encode(Order(7, [Item("tee", 2)], State.OPEN))
    assert json.loads(payload) == {
        "type": "order",
        "version": 1,
        "data": {
            "id": 7,
            "items": [{"name": "tee", "count": 2}],
            "state": "open",
            "weight": 0.0,
            "note": None,
            "at": None,
            "raw": "",
            "is_gift": False,
        },
    }


@attrs.frozen
class Price:
    amount: int
    currency: str


def prices(version: int) -> Registry:
    made = Registry()
    made.register("price", version=version)(Price)
    return made


def test_an_old_record_passes_each_step_to_the_newest_version() -> None:
    new = prices(3)
    new.upgrade("price", from_version=1)(lambda data: {"amount": data["euros"] * 100})
    new.upgrade("price", from_version=2)(lambda data: {**data, "currency": "EUR"})
    assert new.decode(b'{"type":"price","version":1,"data":{"euros":3}}') == Price(300, "EUR")
    assert new.decode(b'{"type":"price","version":2,"data":{"amount":3}}') == Price(3, "EUR")
    assert new.decode(new.encode(Price(1, "CHF"))) == Price(1, "CHF")


def test_a_missing_step_is_named() -> None:
    with pytest.raises(TypedRecordError, match="no step leads from 1 to 2; register one"):
        prices(2).decode(b'{"type":"price","version":1,"data":{}}')


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(TypedRecordError, match="version 2, but this program knows versions up to 1"):
        prices(1).decode(prices(2).encode(Price(1, "EUR")))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"amount": "12", "currency": "EUR"}, "'12' is no int"),
        ({"amount": 1.5, "currency": "EUR"}, "1.5 is no int"),
        ({"amount": True, "currency": "EUR"}, "True is no int"),
        ({"amount": 1, "currency": 7}, "7 is no str"),
        ({"amount": 1}, "currency"),
        ({"amount": 1, "currency": "EUR", "rate": 2}, "rate"),
    ],
)
def test_fields_that_do_not_fit_are_an_error(data: dict[str, object], reason: str) -> None:
    payload = json.dumps({"type": "price", "version": 1, "data": data}).encode()
    with pytest.raises(TypedRecordError, match="'price', version 1, do not fit") as caught:
        prices(1).decode(payload)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"7",
        b"{}",
        b'{"type":"price","version":1}',
        b'{"type":"price","version":1,"data":{},"more":1}',
        b'{"type":1,"version":1,"data":{}}',
        b'{"type":"price","version":0,"data":{}}',
        b'{"type":"price","version":true,"data":{}}',
        b'{"type":"price","version":1,"data":[]}',
        b'{"type":"other","version":1,"data":{}}',
        b"[" * 100_000,
    ],
)
def test_other_payloads_are_an_error(payload: bytes) -> None:
    with pytest.raises(TypedRecordError) as caught:
        prices(1).decode(payload)
    assert len(str(caught.value)) < 300


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_an_error(payload: bytes) -> None:
    with pytest.raises(TypedRecordError):
        registry().decode(payload)


def test_what_cannot_be_read_again_is_not_written() -> None:
    with pytest.raises(TypedRecordError, match="'x' is no int"):
        registry().encode(Order("x", [], State.OPEN))  # type: ignore[arg-type]
    with pytest.raises(TypedRecordError, match="cannot be written as JSON"):
        registry().encode(Order(1, [], State.OPEN, weight=float("nan")))
    with pytest.raises(TypedRecordError, match="Item is not registered"):
        registry().encode(Item("tee", 1))
    assert b'"x"' in registry(check=False).encode(Order("x", [], State.OPEN))  # type: ignore[arg-type]


def test_a_registration_that_contradicts_another_is_refused() -> None:
    made = prices(2)
    with pytest.raises(ValueError, match="'price' is registered already"):
        made.register("price")(Item)
    with pytest.raises(ValueError, match="registered already, as 'price'"):
        made.register("cost")(Price)
    with pytest.raises(TypeError, match="no class of attrs"):
        made.register("text")(str)
    with pytest.raises(ValueError, match="versions begin at 1"):
        made.register("text", version=0)
    made.upgrade("price", from_version=1)(dict)
    with pytest.raises(ValueError, match="has a step from version 1 already"):
        made.upgrade("price", from_version=1)(dict)
    assert repr(made) == "<Registry: price 2>"
    assert repr(Registry()) == "<Registry: empty>"


@pytest.mark.slow
async def test_values_come_with_their_records_and_errors_with_their_position(tmp_path: Path) -> None:
    made = prices(1)
    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        async with namespace.open_writer("prices", create=True) as log:
            first = await log.append(made.encode(Price(1, "EUR")))
            second = await log.append(b"else")
        async with namespace.open_reader("prices", follow=False) as reader:
            values = made.values(reader)
            typed = await anext(values)
            assert (typed.value, typed.record.dlsn) == (Price(1, "EUR"), first)
            with pytest.raises(TypedRecordError, match="no typed record: b'else'") as caught:
                await anext(values)
            assert caught.value.dlsn == second
            await values.aclose()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_values_of_a_blocking_reader(tmp_path: Path) -> None:
    made = prices(1)
    with dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace:
        with namespace.open_writer("prices", create=True) as log:
            log.append(made.encode(Price(1, "EUR")))
        with namespace.open_reader("prices", follow=False) as reader:
            assert [typed.value for typed in made.values_of(reader)] == [Price(1, "EUR")]


@pytest.mark.slow
def test_values_of_a_reader_of_another_face_are_refused_at_once_with_what_to_use(tmp_path: Path) -> None:
    made = prices(1)
    with dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace:
        namespace.create_log("prices")
        with (
            namespace.open_reader("prices", follow=False) as reader,
            pytest.raises(TypeError, match=r"a reader of dlog or dlog\.aio, not <blocking .*: use values_of"),
        ):
            made.values(reader)  # type: ignore[arg-type]

    async def other_way_round(open_namespace: Any) -> None:
        async with (
            open_namespace(tmp_path.as_uri()) as namespace,
            namespace.open_reader("prices", follow=False) as reader,
        ):
            with pytest.raises(TypeError, match=r"a reader of dlog\.blocking or a list, .*: use values$"):
                made.values_of(reader)

    trio.run(other_way_round, dlog.open_namespace)
    asyncio.run(other_way_round(dlog.aio.open_namespace))


@dataclasses.dataclass(frozen=True)
class Payment:
    amount: Decimal
    items: list[Item]
    rate: Decimal | None = None


@given(
    st.builds(
        Payment,
        amount=st.decimals(allow_nan=False),
        items=st.lists(st.builds(Item, name=texts, count=st.integers()), max_size=2),
        rate=st.none() | st.decimals(allow_nan=False, allow_infinity=False),
    )
)
def test_a_dataclass_and_a_decimal_come_back_as_they_were(payment: Payment) -> None:
    made = Registry()
    made.register("payment")(Payment)
    decoded = made.decode(made.encode(payment))
    assert decoded == payment
    assert decoded.amount.as_tuple() == payment.amount.as_tuple()  # also the zeros at its end


@pytest.mark.parametrize("amount", ["1.5.0", "", 1.5, 3, None, True])
def test_what_is_no_decimal_number_does_not_pass_for_one(amount: object) -> None:
    made = Registry()
    made.register("payment")(Payment)
    payload = json.dumps({"type": "payment", "version": 1, "data": {"amount": amount, "items": []}})
    with pytest.raises(TypedRecordError, match="do not fit"):
        made.decode(payload.encode())


class Line(pydantic.BaseModel):
    sku: str
    price: Decimal
    state: State = State.OPEN


class Invoice(pydantic.BaseModel):
    id: int
    lines: list[Line]
    at: datetime.datetime | None = None
    to: str = pydantic.Field(default="", alias="recipient")


@attrs.frozen
class Sent:
    invoice: Invoice
    by: str


invoices = st.builds(
    Invoice,
    id=st.integers(-(2**63), 2**63 - 1),
    lines=st.lists(
        st.builds(
            Line,
            sku=texts,
            price=st.decimals(allow_nan=False, allow_infinity=False),
            state=st.sampled_from(State),
        ),
        max_size=2,
    ),
    at=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
    recipient=texts,
)


@given(invoices)
def test_a_model_of_pydantic_comes_back_as_it_was(invoice: Invoice) -> None:
    made = Registry()
    made.register("invoice")(Invoice)
    made.register("sent")(Sent)
    assert made.decode(made.encode(invoice)) == invoice
    assert made.decode(made.encode(Sent(invoice, "post"))) == Sent(invoice, "post")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": "7"}, "id: Input should be a valid integer"),
        ({"id": 7.5}, "id: Input should be a valid integer"),
        ({"id": True}, "id: Input should be a valid integer"),
        ({"at": "yesterday"}, "at: Input should be a valid datetime"),
        ({"lines": [{"sku": "tee", "price": "2", "colour": "red"}]}, "lines.0.colour: Extra inputs"),
        ({"lines": [{"sku": "tee"}]}, "lines.0.price: Field required"),
        ({"weight": 3}, "weight: Extra inputs are not permitted"),
    ],
)
def test_fields_that_do_not_fit_a_model_are_an_error(change: dict[str, object], reason: str) -> None:
    made = Registry()
    made.register("invoice")(Invoice)
    data = {"id": 7, "lines": [], "recipient": "me", **change}
    payload = json.dumps({"type": "invoice", "version": 1, "data": data}).encode()
    with pytest.raises(TypedRecordError, match="'invoice', version 1, do not fit") as caught:
        made.decode(payload)
    assert reason in str(caught.value)


def test_a_model_that_json_cannot_hold_is_not_written() -> None:
    class Raw(pydantic.BaseModel):
        data: bytes

    made = Registry()
    made.register("raw")(Raw)
    with pytest.raises(TypedRecordError, match="cannot be written as JSON"):
        made.encode(Raw(data=b"\xff"))


OWN = {"schema": b"price", "schema-version": b"1"}
Written = list[tuple[Any, bytes | None, dict[str, bytes]]]
WRITTEN: Written = [
    (Price(1, "EUR"), b"k", {**OWN, "a": b"1"}),
    (Price(2, "EUR"), None, OWN),
    (Price(3, "EUR"), b"k3", {**OWN, "a": b"3"}),
    (Price(4, "EUR"), None, OWN),
]


def shown(typed: list[Typed]) -> Written:
    return [(each.value, each.key, dict(each.headers)) for each in typed]


@pytest.mark.slow
async def test_typed_appends_add_the_headers_of_the_schema_to_those_of_the_caller(tmp_path: Path) -> None:
    made = prices(1)
    async with dlog.open_namespace(tmp_path.as_uri()) as namespace:
        async with namespace.open_writer("prices", create=True) as log:
            await made.append(log, Price(1, "EUR"), key=b"k", headers={"a": b"1"})
            await made.submit(log, Price(2, "EUR"))
            await made.append_many(
                log, [Price(3, "EUR"), Price(4, "EUR")], keys=[b"k3", None], headers=[{"a": b"3"}, None]
            )
            with pytest.raises(ValueError, match="one mapping of headers"):
                await made.append_many(log, [Price(5, "EUR")], headers=[])
            with pytest.raises(TypedRecordError, match="Item is not registered"):
                await made.append_many(log, [Price(5, "EUR"), Item("tee", 1)])
        async with namespace.open_reader("prices", follow=False) as reader:
            found = [each async for each in made.values(reader)]
    assert shown(found) == WRITTEN
    assert [each.record.payload for each in found] == [made.encode(each.value) for each in found]


@pytest.mark.slow
def test_typed_appends_of_asyncio_and_of_threads_do_the_same(tmp_path: Path) -> None:
    made = prices(1)
    many: dict[str, Any] = {"keys": [b"k3", None], "headers": [{"a": b"3"}, None]}
    with dlog.blocking.open_namespace(f"{tmp_path.as_uri()}/1") as blocking:
        with blocking.open_writer("prices", create=True) as log:
            made.append(log, Price(1, "EUR"), key=b"k", headers={"a": b"1"})
            made.submit(log, Price(2, "EUR")).result()
            made.append_many(log, [Price(3, "EUR"), Price(4, "EUR")], **many)
        with blocking.open_reader("prices", follow=False) as reader:
            assert shown(list(made.values_of(reader))) == WRITTEN

    async def in_asyncio() -> list[Typed]:
        async with dlog.aio.open_namespace(f"{tmp_path.as_uri()}/2") as namespace:
            async with namespace.open_writer("prices", create=True) as log:
                await made.append(log, Price(1, "EUR"), key=b"k", headers={"a": b"1"})
                await made.submit(log, Price(2, "EUR"))
                await made.append_many(log, [Price(3, "EUR"), Price(4, "EUR")], **many)
            async with namespace.open_reader("prices", follow=False) as reader:
                return [each async for each in made.values(reader)]

    assert shown(asyncio.run(in_asyncio())) == WRITTEN


@pytest.mark.slow
def test_a_log_without_headers_gets_the_payload_alone(tmp_path: Path) -> None:
    made = prices(1)
    shared = dlog.NamespaceConfig(shared_with_java=True)
    with dlog.blocking.open_namespace(tmp_path.as_uri(), config=shared) as namespace:
        with namespace.open_writer("prices", create=True) as log:
            made.append(log, Price(1, "EUR"))
            made.submit(log, Price(2, "EUR")).result()
            made.append_many(log, [Price(3, "EUR")])
            with pytest.raises(dlog.ConfigError, match="keys_and_headers=True"):
                made.append(log, Price(4, "EUR"), key=b"k")
        with namespace.open_reader("prices", follow=False) as reader:
            found = list(made.values_of(reader))
    assert shown(found) == [(Price(number, "EUR"), None, {}) for number in (1, 2, 3)]
    assert found[0].record.payload == (b'{"type":"price","version":1,"data":{"amount":1,"currency":"EUR"}}')


def test_headers_that_are_passed_on_do_not_replace_those_of_the_value() -> None:
    passed_on = {"schema": b"order", "a": b"1", "schema-version": b"7"}
    assert list(prices(2).headers(Price(1, "EUR"), passed_on).items()) == [
        ("schema", b"price"),
        ("schema-version", b"2"),
        ("a", b"1"),
    ]
    with pytest.raises(TypedRecordError, match="Item is not registered"):
        prices(2).headers(Item("tee", 1))


def test_headers_say_the_schema_of_a_payload_that_is_the_fields_alone() -> None:
    made = prices(2)
    made.upgrade("price", from_version=1)(lambda data: {**data, "currency": "EUR"})
    bare = b'{"amount":1}'
    assert made.decode(bare, OWN) == Price(1, "EUR")
    for headers in ({}, {"schema": b"price"}, {"schema-version": b"1"}):
        with pytest.raises(TypedRecordError, match="no typed record"):
            made.decode(bare, headers)
    with pytest.raises(TypedRecordError, match="no typed record"):
        made.decode(b"[1]", OWN)
    with pytest.raises(TypedRecordError, match="knows versions up to 2"):
        made.decode(bare, {**OWN, "schema-version": b"3"})
    with pytest.raises(TypedRecordError, match="its type is 'cost'"):
        made.decode(bare, {**OWN, "schema": b"cost"})
    for wrong in ({"schema-version": b"0"}, {"schema-version": b"1.0"}, {"schema": b"\xff"}):
        with pytest.raises(TypedRecordError, match="are no type and version"):
            made.decode(bare, OWN | wrong)


def test_headers_that_contradict_the_payload_are_an_error() -> None:
    made = prices(2)
    made.upgrade("price", from_version=1)(lambda data: {**data, "currency": "EUR"})
    payload = made.encode(Price(1, "CHF"))
    assert made.decode(payload, made.headers(Price(1, "CHF"))) == Price(1, "CHF")
    assert made.decode(payload, {"schema": b"avro:7"}) == Price(1, "CHF"), "a header of something else"
    for stale in (OWN, {**OWN, "schema": b"cost"}):
        with pytest.raises(TypedRecordError, match="but its payload says type 'price', version 2"):
            made.decode(payload, stale)


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr = pydantic.SecretStr("")


class Hidden(pydantic.BaseModel):
    id: int
    note: str = pydantic.Field(default="", exclude=True)


class LineWithTax(Line):
    tax: int = 0


class Noted(pydantic.BaseModel):
    id: int
    _note: str = pydantic.PrivateAttr(default="")


class Holder(pydantic.BaseModel):
    by_name: dict[str, list[Login]] = {}


def noted() -> Noted:
    value = Noted(id=1)
    value._note = "seen"
    return value


@dataclasses.dataclass
class Base:
    id: int


@dataclasses.dataclass
class Derived(Base):
    more: str = ""


@dataclasses.dataclass
class Holds:
    part: Base
    numbers: list[int] = dataclasses.field(default_factory=list)


LINE = LineWithTax(sku="tee", price=Decimal(2), tax=7)
LOGIN = Login(user="me", password=pydantic.SecretStr("hunter2"))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (LOGIN, "its field 'password' would have another value"),
        (Holder(by_name={"a": [LOGIN]}), "its field 'by_name.a.0.password' would have another value"),
        (Hidden(id=1, note="x"), "its field 'note' would have another value"),
        (Invoice(id=1, lines=[LINE]), "its field 'lines.0' is LineWithTax, and would be Line"),
        (noted(), "its field '_note' would have another value"),
        (Holds(Derived(1, "x")), "its field 'part'"),
        (Holds(Base(1), (1, 2)), "its field 'numbers' is tuple, and would be list"),  # type: ignore[arg-type]
    ],
    ids=["secret", "secret within", "excluded", "subclass", "private", "subclass of a dataclass", "tuple"],
)
def test_a_value_that_would_come_back_changed_is_not_written(value: Any, why: str) -> None:
    made = Registry()
    made.register("thing")(type(value))
    with pytest.raises(TypedRecordError) as caught:
        made.encode(value)
    assert "'thing'" in str(caught.value)
    assert why in str(caught.value)
    assert "hunter2" not in str(caught.value)


@attrs.define(eq=False)
class Plain:
    id: int
    part: Base


@dataclasses.dataclass
class Around:
    part: Plain
    rate: Decimal = Decimal("NaN")


class Unsure:
    """Its equality raises, as that of an array does where one answer is asked for."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("which one?")

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass
class Numbers:
    many: Unsure
    one: int = 1


@pytest.mark.parametrize(
    "value",
    [
        Plain(1, Base(2)),
        Around(Plain(1, Base(2))),
        Numbers(Unsure()),
        Login(user="me"),
        Hidden(id=1),
        Noted(id=1),
    ],
    ids=["no equality", "no equality within", "unsure", "no secret", "as excluded", "no note"],
)
def test_what_comes_back_as_it_was_is_written(value: Any) -> None:
    converter = strict_converter()
    converter.register_unstructure_hook(Unsure, lambda _: 0)
    converter.register_structure_hook(Unsure, lambda *_: Unsure())
    made = Registry(converter)
    made.register("thing")(type(value))
    assert type(made.decode(made.encode(value))) is type(value)


def test_a_field_of_a_value_without_equality_is_compared() -> None:
    made = Registry()
    made.register("thing")(Plain)
    with pytest.raises(TypedRecordError, match="its field 'part'"):
        made.encode(Plain(1, Derived(2, "x")))


def test_without_the_check_a_value_is_written_as_it_is() -> None:
    made = Registry(check=False)
    made.register("thing")(Hidden)
    assert made.decode(made.encode(Hidden(id=1, note="x"))) == Hidden(id=1)
