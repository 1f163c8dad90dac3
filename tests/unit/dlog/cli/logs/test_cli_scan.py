"""`dlog scan`: files of Parquet and CSV, queries, and what is left of a scan that fails or is stopped."""

# covers: dlog/cli/logs/scan.py
# covers: dlog/scan/query.py

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pyarrow.parquet
import pytest

import dlog.blocking
from dlog.cli.main import main
from dlog.read.log_reader import LogReader

COUNT = 25


@attrs.frozen
class CommandResult:
    code: int
    out: str
    err: str


Dlog = Callable[..., CommandResult]


@pytest.fixture
def dlog_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Dlog:
    """`dlog scan` in this process, on a namespace with the logs "orders" and "binary"."""
    uri = (tmp_path / "namespace").as_uri()
    monkeypatch.setenv("DLOG_URI", uri)
    monkeypatch.delenv("DLOG_DEBUG", raising=False)
    with dlog.blocking.open_namespace(uri) as namespace:
        with namespace.open_writer("orders", create=True) as log:
            for at in range(COUNT):
                log.append(b"payload, %d" % at, txid=at, key=b"k" if at % 2 else None, headers={"a": b"1"})
        with namespace.open_writer("binary", create=True) as log:
            log.append(b"\xff\xfe", key=b"text")

    def run(*arguments: str) -> CommandResult:
        code = main(["scan", *arguments])
        captured = capfd.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return run


def files_of(directory: Path) -> list[str]:
    return sorted(each.name for each in directory.iterdir() if each.is_file())


def test_a_log_becomes_a_file_of_parquet(dlog_scan: Dlog, tmp_path: Path) -> None:
    file = tmp_path / "orders.parquet"
    result = dlog_scan("orders", "--parquet", str(file))
    assert (result.code, result.out) == (0, "")
    assert "25 rows" in result.err
    rows = pyarrow.parquet.read_table(file).to_pylist()
    assert [row["txid"] for row in rows] == list(range(COUNT))
    assert rows[1]["payload"] == b"payload, 1"
    assert rows[1]["headers"] == [{"key": "a", "value": b"1"}]
    assert files_of(tmp_path) == ["orders.parquet"]


def test_a_part_of_a_log_becomes_a_file_of_csv(dlog_scan: Dlog, tmp_path: Path) -> None:
    file = tmp_path / "orders.csv"
    names = "txid,payload,key,headers"
    result = dlog_scan("orders", "--csv", str(file), "--columns", names, "--from", "3", "--to", "4", "--json")
    assert result.code == 0
    assert json.loads(result.out) == {
        "log": "orders",
        "file": str(file),
        "rows": 2,
        "size_bytes": file.stat().st_size,
    }
    with file.open(newline="") as lines:
        assert list(csv.reader(lines)) == [
            names.split(","),
            ["3", "payload, 3", "k", '{"a": "1"}'],
            ["4", "payload, 4", "", '{"a": "1"}'],
        ]
    assert dlog_scan("orders", "--csv", str(file), "--force").code == 0
    assert file.read_text().splitlines()[0] == '"segment","entry","slot","txid","sequence_id","payload","key"'


def test_a_query_prints_a_table_or_an_object_for_each_row(dlog_scan: Dlog) -> None:
    query = "SELECT key, count(*) AS n, min(txid) / 2.0 AS half FROM log GROUP BY key ORDER BY n"
    result = dlog_scan("orders", "--sql", query)
    assert result.code == 0
    assert [line.split() for line in result.out.splitlines()] == [
        ["key", "n", "half"],
        ["k", "12", "0.5"],
        ["-", "13", "0.0"],
    ]
    result = dlog_scan("orders", "--sql", query, "--json")
    assert [json.loads(line) for line in result.out.splitlines()] == [
        {"key": "k", "n": 12, "half": 0.5},
        {"key": None, "n": 13, "half": 0.0},
    ]
    twice = dlog_scan("orders", "--sql", "SELECT count(*) AS n FROM log a, log b", "--json")
    assert json.loads(twice.out) == {"n": COUNT**2}


def test_values_that_json_does_not_have_are_text(dlog_scan: Dlog) -> None:
    query = (
        "SELECT payload, DATE '2026-11-01' AS d, [1.5, 'nan'::DOUBLE] AS l, {'a': 'x'::BLOB} AS s FROM log"
    )
    result = dlog_scan("binary", "--sql", query, "--json")
    assert json.loads(result.out) == {
        "payload_base64": "//4=",
        "d": "2026-11-01",
        "l": [1.5, "nan"],
        "s": {"a": "x"},
    }
    assert "//4=" in dlog_scan("binary", "--sql", query).out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "give one of --parquet FILE, --csv FILE and --sql QUERY"),
        (["--sql", "SELECT 1", "--csv", "x"], "give one of"),
        (["--sql", "SELEC"], "the query: Parser Error"),
        (["--sql", "SELECT place FROM log"], "the query: Binder Error"),
        (["--sql", "SELECT 1", "--columns", "offset"], "there is no column 'offset'"),
        (["--sql", "SELECT 1", "--to", "earliest"], "--to earliest"),
        (["--csv", "/dev/null"], "/dev/null exists; give --force"),
    ],
)
def test_wrong_arguments_are_exit_code_2(dlog_scan: Dlog, arguments: list[str], problem: str) -> None:
    result = dlog_scan("orders", *arguments)
    assert result.code == 2
    assert problem in result.err


def test_a_query_that_fails_is_exit_code_1(dlog_scan: Dlog) -> None:
    result = dlog_scan("orders", "--sql", "SELECT payload::VARCHAR::INT FROM log")
    assert result.code == 1
    assert "Could not convert" in result.err


def test_a_missing_log_is_exit_code_3_and_leaves_no_file(dlog_scan: Dlog, tmp_path: Path) -> None:
    assert dlog_scan("none", "--parquet", str(tmp_path / "file")).code == 3
    assert files_of(tmp_path) == []


def test_bytes_that_are_no_text_are_exit_code_1_in_csv_and_leave_no_file(
    dlog_scan: Dlog, tmp_path: Path
) -> None:
    result = dlog_scan("binary", "--csv", str(tmp_path / "file"))
    assert result.code == 1
    assert "a payload is not text in UTF-8; leave the column out with --columns" in result.err
    assert files_of(tmp_path) == []
    assert dlog_scan("binary", "--csv", str(tmp_path / "file"), "--columns", "key").code == 0


@pytest.mark.parametrize("target", ["--parquet", "--csv", "--sql"])
def test_damage_is_exit_code_7_and_leaves_the_old_file(
    dlog_scan: Dlog, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: LogReader, records_max: int, **_: object) -> None:
        raise dlog.CorruptLogError("orders", self.position, "a test damaged it")

    monkeypatch.setattr(LogReader, "read_batch", fails)
    file = tmp_path / "file"
    file.write_text("old")
    value = "SELECT sum(txid) FROM log" if target == "--sql" else str(file)
    result = dlog_scan("orders", target, value, "--force")
    assert result.code == 7
    assert "a test damaged it" in result.err
    assert files_of(tmp_path) == ["file"]
    assert file.read_text() == "old"


def test_an_interrupt_ends_a_long_query_with_exit_code_130(dlog_scan: Dlog, tmp_path: Path) -> None:
    # The program says when the query has begun: DuckDB reads the log for its first place then.
    program = (
        "import sys\n"
        "from dlog.scan import query\n"
        "from dlog.cli.main import main\n"
        "class Told(query.ThreadScan):\n"
        "    def __arrow_c_stream__(self, schema=None):\n"
        "        print('begun', flush=True)\n"
        "        return super().__arrow_c_stream__(schema)\n"
        "query.ThreadScan = Told\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    many = "range(1000000000)"
    sql = f"SELECT count(*) FROM log, {many} a, {many} b WHERE a.range + b.range > txid"
    child = subprocess.Popen(
        [sys.executable, "-c", program, "scan", "orders", "--sql", sql], stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130


def test_without_duckdb_the_error_names_the_extra(dlog_scan: Dlog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    result = dlog_scan("orders", "--sql", "SELECT 1")
    assert result.code == 2
    assert "pip install '.[scan]'" in result.err


def test_fields_of_json_are_columns(dlog_scan: Dlog, tmp_path: Path) -> None:
    with dlog.blocking.open_namespace((tmp_path / "namespace").as_uri()) as namespace:
        with namespace.open_writer("json", create=True) as log:
            log.append_many([b'{"id":1,"tag":"x"}', b'{"id":2}'])
        with namespace.open_writer("typed", create=True) as log:
            log.append(b'{"type":"order","version":2,"data":{"id":7}}')
    query = ["--sql", "SELECT sum(id) AS total FROM log", "--json"]
    for log_name, fields, total in (
        ("json", ["--fields", "auto"], 3),
        ("json", ["--fields", "id:int64, tag:string"], 3),
        ("typed", ["--typed"], 7),
        ("typed", ["--typed", "--fields", "id:int32"], 7),
    ):
        assert json.loads(dlog_scan(log_name, *query, *fields).out) == {"total": total}
    file = tmp_path / "file.csv"
    assert dlog_scan("json", "--csv", str(file), "--fields", "auto").code == 0
    assert file.read_text().splitlines()[0].endswith('"key","id","tag"')
    for wrong in ("id", "id:", ":int64", "id:number"):
        assert dlog_scan("json", *query, "--fields", wrong).code == 2
    result = dlog_scan("orders", *query, "--fields", "auto")
    assert result.code == 1
    assert "record at 1:0:0: its payload is no JSON object" in result.err
