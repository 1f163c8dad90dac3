"""Parts of tasks of the sink, without Spark."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import dlog.blocking
from spark_integration.sink.options import SinkOptions, parse_sink_options
from spark_integration.sink.parts import Part, write_part


def options_of(namespace: dlog.blocking.Namespace, **more: object) -> SinkOptions:
    given = {"uri": namespace.uri, "stream": "out", **{name: str(value) for name, value in more.items()}}
    return parse_sink_options(given, streaming="number" not in given)


def rows(
    *payloads: bytes, stream: str | None = None, txids: Sequence[int] | None = None, **more: list[Any]
) -> pa.RecordBatch:
    columns: dict[str, Any] = {"payload": list(payloads), **more}
    if txids is not None:
        columns["txid"] = list(txids)
    if stream is not None:
        columns["stream"] = [stream] * len(payloads)
    return pa.RecordBatch.from_pydict(columns)


def written(namespace: dlog.blocking.Namespace, log: str = "out") -> list[bytes]:
    with namespace.open_reader(log, follow=False) as reader:
        return [record.payload for record in reader]


def part(
    namespace: dlog.blocking.Namespace, options: SinkOptions, number: int, *batches: pa.RecordBatch
) -> Part:
    """What a task returns, as the driver gets it."""
    found = pickle.loads(pickle.dumps(write_part(namespace, options, batches, "query", number)))
    assert isinstance(found, Part)
    return found


def orphans(namespace: dlog.blocking.Namespace) -> list[int]:
    return [each.ledger_id for each in namespace.repair.find_orphans(older_than=datetime.timedelta())]
