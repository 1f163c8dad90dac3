"""Each parser of a text from a node, a property, a file or an option x bad texts: only errors of ours.

The nodes of a metadata store as a whole are swept by ``test_node_values``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

import dlog
from dlog.bulk.attaching import _number_in
from dlog.bulk.plan import BatchPlan
from dlog.cluster.daemons import DaemonError, Daemons
from dlog.cluster.hosts.hosted_cluster import _json
from dlog.cluster.layout import ClusterStateError, decode_state
from dlog.cluster.zookeeper_member import ZookeeperConfigError, client_address
from dlog.errors import LogMetadataError
from dlog.shards.creation import _is_later_shard
from dlog.shards.layout import COUNT_KEY, HASH, HASH_KEY, STATE_KEY, layout_in
from ledger.catalog.backup_file import _parsed
from namespace.properties import LogProperties
from spark_integration.errors import PipelineError, SparkDlogError
from spark_integration.options import _list, positive
from spark_integration.pipelines.archives.export import EXPORT, _stored
from spark_integration.pipelines.archives.manifest import ManifestPart
from spark_integration.pipelines.compacting.files import MANIFEST, read_file_snapshot
from spark_integration.pipelines.compacting.manifest import decode_manifest
from spark_integration.pipelines.copying.note import PROPERTY, decode_note
from spark_integration.pipelines.verifying.report import parse_report
from spark_integration.places import _json as json_of_option
from spark_integration.sink.contents import BatchRecord
from spark_integration.sink.options import parse_sink_options

SERIES = BatchPlan(series="s", number=1, record_log="a", logs={})
TEXTS = {
    "empty": "",
    "no JSON": "{",
    "a text": '"x"',
    "a list": "[1, [], {}]",
    "null": "null",
    "an object": '{"v": 1, "version": 1, "kind": "segment"}',
    "objects in it": '{"v": {}, "version": [], "number": {}, "rows": [], "digest": 1}',
    "deep": "[" * 100_000,
    "deep objects": '{"a":' * 100_000,
    "5,000 digits": "9" * 5_000,
    "2^63": "9223372036854775808",
    "-1": "-1",
    "digits of another script": "²٣",
    "NUL": "a\x00b",
    "NaN": '{"v": NaN, "version": Infinity}',
}


def in_file(name: str, read: Callable[[Path], object]) -> Callable[[str, Path], object]:
    def parse(text: str, directory: Path) -> object:
        (directory / name).write_text(text)
        return read(directory)

    return parse


def config_in(directory: Path, text: str) -> Path:
    (directory / "zoo.cfg").write_text(text)
    return directory / "zoo.cfg"


PARSERS: dict[str, Callable[[str, Path], object]] = {
    "number of a batch": lambda text, _: _number_in(LogProperties({"dlog.batch.s": text}, 1), SERIES),
    "shards": lambda text, _: layout_in("a", {COUNT_KEY: text, HASH_KEY: HASH, STATE_KEY: "complete"}),
    "name of a shard": lambda text, _: _is_later_shard("a", f"a/shard-{text}"),
    "state of a cluster": decode_state,
    "reply of a host": lambda text, _: _json(attrs.make_class("O", ["output"])(text)),
    "line of a backup": lambda text, _: _parsed(text.encode()),
    "daemon": in_file("orders.json", lambda directory: Daemons(directory)._read("orders")),
    "manifest of an archive": lambda text, _: ManifestPart.decoded(text.encode(), "part 1"),
    "manifest of a snapshot": lambda text, _: decode_manifest("s", text),
    "snapshot of files": in_file(MANIFEST, read_file_snapshot),
    "export": in_file(EXPORT, lambda directory: _stored(directory, {"log": "a"})),
    "note of a copy": lambda text, _: decode_note("a", {PROPERTY: text}),
    "report": lambda text, _: parse_report("r", "file:/a", [text]),
    "contents of a batch": lambda text, _: BatchRecord.decode(text, 1),
    "streams": lambda text, _: _list(text),
    "starting offsets": lambda text, _: json_of_option(text),
    "number of a batch write": lambda text, _: parse_sink_options(
        {"uri": "file:///a", "stream": "a", "series": "s", "number": text}, streaming=False
    ),
    "port of ZooKeeper": lambda text, directory: client_address(config_in(directory, f"clientPort={text}")),
    "count of an option": lambda text, _: positive({"n": text}, "n"),
}
OURS = (
    dlog.DLogError,
    LogMetadataError,
    SparkDlogError,
    PipelineError,
    ClusterStateError,
    DaemonError,
    ZookeeperConfigError,
)


@pytest.mark.parametrize("parser", PARSERS)
def test_a_bad_text_raises_no_other_error_than_ours(parser: str, tmp_path: Path) -> None:
    wrong = []
    for name, text in TEXTS.items():
        try:
            PARSERS[parser](text, tmp_path)
        except OURS:
            pass
        except Exception as exc:
            wrong.append(f"{name}: {exc!r:.200}")
    assert wrong == []


@pytest.mark.parametrize("name", [MANIFEST, EXPORT])
def test_a_file_that_is_not_utf_8_raises_an_error_of_ours(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x80")
    with pytest.raises(PipelineError):
        read_file_snapshot(tmp_path) if name == MANIFEST else _stored(tmp_path, {"log": "a"})
