"""Real Spark copies logs: in parallel, with their transaction ids, each record once."""

# covers: spark_integration/commands/copy.py
# covers: spark_integration/pipelines/tasks.py

from __future__ import annotations

from pathlib import Path

import pytest

import dlog
import dlog.blocking
from tests.spark.conftest import PipelineCommand
from tests.spark.queries import Orders

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_spark_copies_logs_in_parallel_and_goes_on(
    pipeline: PipelineCommand, orders: Orders, tmp_path: Path
) -> None:
    target = (tmp_path / "target").as_uri()
    with orders.namespace.open_writer("payments", create=True) as writer:
        writer.append_many([b"p1", b"p2"], txids=[5, 5])
    for count in (400, 100):
        orders.append(count)
        orders.namespace.cursors("orders").set("billing", dlog.DLSN(*orders.written[count // 2][:3]))
        if count == 100:
            orders.namespace.seal_log("orders")
        arguments = ("copy", "orders", "--uri", orders.uri, "--to", target, "--pattern", "pay*", "--cursors")
        code, found = pipeline(*arguments)
        assert (code, [each["error"] for each in found]) == (0, [None, None])
        assert [each["is_sealed"] for each in found] == [count == 100, False]
        assert found[0]["records"] == count
    with dlog.blocking.open_namespace(target) as namespace:
        assert [(each.txid, each.payload) for each in read(namespace, "orders")] == [
            (txid, payload) for *_, txid, payload in orders.written
        ]
        cursor = namespace.cursors("orders").get("billing")
        assert cursor is not None
        with namespace.open_reader("orders", start=cursor.position, follow=False) as reader:
            assert next(reader).txid == 200  # it does not go back to 50
        assert [(each.txid, each.payload) for each in read(namespace, "payments")] == [(5, b"p1"), (5, b"p2")]
        namespace.delete_log("payments")
    orders.namespace.create_log("x")
    code, found = pipeline("copy", "orders", "y", "--uri", orders.uri, "--to", target)
    assert code == 3
    assert found[0]["error"] is None


def read(namespace: dlog.blocking.Namespace, log: str) -> list[dlog.Record]:
    with namespace.open_reader(log, follow=False) as reader:
        return list(reader)


@pytest.mark.parametrize(
    "arguments",
    [
        ("archive", "orders", "--into", "archive"),
        ("table", "orders", "--archive", "archive", "--parquet", "out"),
        ("restore", "archive", "again"),
        ("copy", "orders", "--to", "file:///elsewhere"),
        ("verify", "--report", "report.jsonl"),
        ("compact", "orders", "--key", "txid", "--into", "snapshot"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_setting_of_the_client_reaches_each_pipeline(
    pipeline: PipelineCommand,
    orders: Orders,
    arguments: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A setting that does not exist is refused before anything is read, so it was not dropped."""
    monkeypatch.chdir(tmp_path)
    orders.append(1)
    uri = ("--uri", orders.uri)
    assert pipeline(*arguments, *uri, "--option", "client.write_quorom=2")[0] != 0
    assert "did you mean write_quorum" in pipeline.errors
    if arguments[0] == "copy":
        assert pipeline(*arguments, *uri, "--to-option", "client.write_quorom=2")[0] != 0
        assert "did you mean write_quorum" in pipeline.errors
