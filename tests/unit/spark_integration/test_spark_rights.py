"""The source and the sink, as Spark calls them, for principals without the right; without Spark itself."""

# covers: spark_integration/sink/writers.py
# covers: spark_integration/source.py

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trio
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

import dlog
import dlog.blocking
from ledger.metadata_store.store import MetadataStore
from namespace.policy import Policy, Right, Rule
from spark_integration.errors import OptionError
from spark_integration.offsets import Position, to_offset
from spark_integration.sink.options import parse_sink_options
from spark_integration.sink.parts import Part, write_part
from spark_integration.source import DlogDataSource
from tests.unit.spark_integration.sinking import rows

NUMBERS = ("segment", "entry", "slot", "txid")
SCHEMA = StructType(
    [
        StructField("stream", StringType()),
        *(StructField(name, LongType()) for name in NUMBERS),
        StructField("payload", BinaryType()),
    ]
)
ROWS = StructType([StructField("payload", BinaryType())])  # of the sink
LIMIT = ReadMaxRows(2**63 - 1)
POLICY = Policy(
    (
        Rule("operator", "*", frozenset({Right.ADMIN})),
        Rule("neighbour", "other", frozenset({Right.ADMIN})),
        Rule("reader", "orders", frozenset({Right.READ})),
        Rule("committer", "orders", frozenset({Right.COMMIT})),
        Rule("writer", "orders", frozenset({Right.WRITE})),
    )
)
# Each task writes its rows to a ledger.
SERIES = {"series": "series", "number": "1", "driverBytesMax": "1"}
READERS = ("reader", "committer", "writer")
PRINCIPALS = ("stranger", "neighbour", *READERS)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = (tmp_path / "namespace").as_uri()
    with dlog.blocking.open_namespace(uri, config=dlog.NamespaceConfig(principal="operator")) as operator:
        operator.policy.set(POLICY)
        with operator.open_writer("orders", create=True) as writer:
            writer.append(b"secret")
    return uri


def source(uri: str, principal: str, **more: str) -> DlogDataSource:
    return DlogDataSource({"uri": uri, "client.principal": principal, "stream": "orders", **more})


def sink(uri: str, principal: str, **more: str) -> DlogDataSource:
    return source(uri, principal, **SERIES, **more)


def operators_part(uri: str) -> Part:
    """A part of a batch that its principal did not write, as a forged message would name it."""
    options = parse_sink_options(
        {"uri": uri, "client.principal": "operator", "stream": "orders", **SERIES}, streaming=False
    )
    with dlog.blocking.open_namespace(uri, config=dlog.NamespaceConfig(principal="operator")) as operator:
        return write_part(operator, options, [rows(b"of the operator")], "series", 1)


Action = Callable[[str, str, Part], Any]
READS: Mapping[str, Action] = {
    "schema": lambda uri, who, part: source(uri, who).schema(),
    "partitions": lambda uri, who, part: source(uri, who).reader(SCHEMA).partitions(),
    "initialOffset": lambda uri, who, part: source(uri, who).streamReader(SCHEMA).initialOffset(),
    "latestOffset": lambda uri, who, part: (
        source(uri, who).streamReader(SCHEMA).latestOffset(to_offset({"orders": Position(1, -1, -1)}), LIMIT)
    ),
}
WRITES: Mapping[str, Action] = {
    "write": lambda uri, who, part: sink(uri, who).writer(ROWS, False).write(iter([rows(b"x")])),
    "commit": lambda uri, who, part: sink(uri, who).writer(ROWS, False).commit([part]),
    "abort": lambda uri, who, part: sink(uri, who).writer(ROWS, False).abort([part]),
    "commit of a stream": lambda uri, who, part: source(uri, who).streamWriter(ROWS, False).commit([part], 1),
    "abort of a stream": lambda uri, who, part: source(uri, who).streamWriter(ROWS, False).abort([part], 1),
}


async def _stored(store: MetadataStore, path: str = "/dlog") -> dict[str, tuple[bytes, int]]:
    node, children = await store.get(path), await store.children(path)
    found = {path: (node.value, node.stat.version)}
    for name in children.names:
        found |= await _stored(store, f"{path}/{name}")
    return found


def stored(uri: str) -> tuple[dict[str, tuple[bytes, int]], set[int]]:
    """The nodes, and the ledgers."""

    async def go() -> tuple[dict[str, tuple[bytes, int]], set[int]]:
        async with dlog.open_namespace(uri) as namespace:
            nodes = await _stored(namespace.context.store)
        async with dlog.open_ledgers(uri) as client:
            return nodes, set(await client.ledger_ids())

    return trio.run(go)


@pytest.mark.slow
@pytest.mark.parametrize("principal", PRINCIPALS)
def test_the_source_and_the_sink_are_refused_without_the_right_and_change_nothing(
    principal: str, uri: str
) -> None:
    part = pickle.loads(pickle.dumps(operators_part(uri)))
    before, wrong = stored(uri), []
    denied = {**({} if principal in READERS else READS), **({} if principal == "writer" else WRITES)}
    for name, action in denied.items():
        try:
            action(uri, principal, part)
        except dlog.AccessDeniedError:
            continue
        finally:
            if stored(uri) != before:
                wrong.append(f"{name} changes the namespace")
                before = stored(uri)
        if not name.startswith("abort"):  # it logs the refusal
            wrong.append(f"{name} is not refused")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_they_are_not_refused_with_the_right(uri: str) -> None:
    """So it is the right that is missing above."""
    part = operators_part(uri)
    for name, action in {**READS, **WRITES}.items():
        if "stream" not in name:  # of another series; a part of a batch is of one kind
            action(uri, "writer", part)
    reader = source(uri, "reader").reader(SCHEMA)
    found = [batch for each in reader.partitions() for batch in reader.read(each)]
    assert b"secret" in [payload for batch in found for payload in batch.column("payload").to_pylist()]


@pytest.mark.slow
def test_a_pattern_names_only_the_logs_that_the_principal_may_read(uri: str) -> None:
    given = {"uri": uri, "client.principal": "neighbour", "streamPattern": "*"}
    with pytest.raises(OptionError, match=r"the streams '\*': no log of .* matches"):
        DlogDataSource(given).reader(SCHEMA)
