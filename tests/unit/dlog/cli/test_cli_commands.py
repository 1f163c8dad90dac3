"""The commands on an embedded namespace, called with the arguments of a shell."""

# covers: dlog/__main__.py
# covers: dlog/cli/logs/log.py
# covers: dlog/cli/logs/read.py
# covers: dlog/cli/logs/tail.py
# covers: dlog/cli/logs/write.py
# covers: dlog/cli/main.py
# covers: dlog/cli/terminal/spark_lookup.py
# covers: spark_integration/commands/command.py

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from dlog import PAYLOAD_BYTES_MAX
from dlog.cli.main import COMMANDS, main

pytestmark = pytest.mark.slow


@attrs.frozen
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Dlog = Callable[..., CommandResult]


@pytest.fixture
def dlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Dlog:
    """Run one command in this process, on a namespace of the test's own."""
    monkeypatch.setenv("DLOG_URI", (tmp_path / "namespace").as_uri())
    monkeypatch.delenv("DLOG_DEBUG", raising=False)

    def run(*arguments: str) -> CommandResult:
        code = main(arguments)
        captured = capfd.readouterr()
        return CommandResult(code, captured.out, captured.err)

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"first\n\nthird\n\xff\xfe\nlast, without an end")
    return lines


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_encrypted_records_are_not_printed_without_a_key_unless_asked_for(
    dlog: Dlog, tmp_path: Path, form: tuple[str, ...]
) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("spring " + "ab" * 32 + "\n")
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"plain\n")
    assert dlog("write", "orders", str(lines), "--create").code == 0
    assert dlog("write", "orders", str(lines), "--key-file", str(keys)).code == 0
    for command in (["read", "orders"], ["tail", "orders", "--from", "earliest", "--count", "2"]):
        result = dlog(*command, *form)
        assert result.code == 2
        assert len(result.lines) == 1
        assert "plain" in result.out
        assert "'spring'" in result.err
        assert "--key-file FILE, or --raw" in result.err
    assert dlog("read", "orders", "--raw", *form).code == 0


LONG = b"x" * (1 << 21)


@pytest.mark.parametrize("end", [b"\nlast\n", b"\n", b""])
def test_a_line_that_is_too_long_for_a_record_ends_the_command_and_no_part_of_it_is_written(
    dlog: Dlog, tmp_path: Path, end: bytes
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"first\nsecond\n" + LONG + end)
    result = dlog("write", "orders", str(lines), "--create", "--txid-from", "7")
    assert result.code == 1
    assert f"line 3 has {len(LONG)} bytes; a record holds at most" in result.err
    assert "The 2 lines before it are durable" in result.err
    way_on = "with the other options of this call: tail -n +3 FILE | dlog write --txid-from 9 orders"
    assert way_on in result.err
    assert dlog("read", "orders").out == "first\nsecond\n"


def test_a_line_of_the_greatest_size_is_one_record(dlog: Dlog, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"y" * PAYLOAD_BYTES_MAX + b"\n" + b"z" * PAYLOAD_BYTES_MAX)
    assert "2 records" in dlog("write", "orders", str(lines), "--create").err
    lines.write_bytes(b"y" * (PAYLOAD_BYTES_MAX + 1) + b"\nz")
    result = dlog("write", "orders", str(lines))
    assert result.code == 1
    assert f"line 1 has {PAYLOAD_BYTES_MAX + 1} bytes" in result.err


def test_written_lines_are_read_back(dlog: Dlog, file: Path) -> None:
    assert dlog("log", "create", "orders").code == 0
    assert dlog("write", "orders", str(file)).code == 0
    result = dlog("read", "orders", "--from", "earliest", "--count", "3")
    assert result.out == "first\n\nthird\n"
    assert result.err == ""


def test_write_reports_the_durable_records(dlog: Dlog, file: Path) -> None:
    result = dlog("write", "orders", str(file), "--create", "--json")
    document = json.loads(result.out)
    assert (document["log"], document["records"], document["bytes"]) == ("orders", 5, 32)
    assert document["first_dlsn"] == "1:0:0"


def test_read_prints_text_and_bytes_differently_in_json(dlog: Dlog, file: Path) -> None:
    dlog("write", "orders", str(file), "--create", "--txid-from", "100")
    documents = [json.loads(line) for line in dlog("read", "orders", "--json").lines]
    assert [document["txid"] for document in documents] == [100, 101, 102, 103, 104]
    assert [document.get("payload") for document in documents] == [
        "first",
        "",
        "third",
        None,
        "last, without an end",
    ]
    assert documents[3]["payload_base64"] == "//4="


def test_from_and_to_are_inclusive(dlog: Dlog, file: Path) -> None:
    dlog("write", "orders", str(file), "--create", "--txid-from", "100")
    documents = [json.loads(line) for line in dlog("read", "orders", "--json").lines]
    by_txid = dlog("read", "orders", "--json", "--from", "101", "--to", "102")
    assert [json.loads(line)["txid"] for line in by_txid.lines] == [101, 102]
    third = documents[2]["dlsn"]
    by_dlsn = dlog("read", "orders", "--json", "--from", third, "--to", third)
    assert [json.loads(line) for line in by_dlsn.lines] == [documents[2]]
    as_of_now = dlog("read", "orders", "--json", "--from", "103", "--to", "latest")
    assert [json.loads(line)["txid"] for line in as_of_now.lines] == [103, 104]


def test_a_second_write_appends_a_segment(dlog: Dlog, file: Path) -> None:
    dlog("write", "orders", str(file), "--create")
    dlog("write", "orders", str(file))
    described = json.loads(dlog("log", "show", "orders", "--json").out)
    assert len(described["segments"]) == 2
    assert len(dlog("read", "orders", "--json").lines) == 10


def test_tail_starts_at_a_position_and_stops_at_its_count(dlog: Dlog, file: Path) -> None:
    dlog("write", "orders", str(file), "--create", "--txid-from", "1")
    result = dlog("tail", "orders", "--from", "3", "--count", "1")
    assert result.out == "third\n"


def test_statistics_are_printed_at_the_end_on_request(dlog: Dlog, file: Path) -> None:
    written = json.loads(dlog("write", "orders", str(file), "--create", "--statistics", "--json").out)
    assert written["statistics"]["counters"]["dlog_records_sent"] == 5
    assert written["statistics"]["histograms"]["log_writer_bulk_write"]["count"] >= 1
    tail = ("tail", "orders", "--from", "earliest", "--count", "2", "--statistics")
    *records, last = map(json.loads, dlog(*tail, "--json").lines)
    assert len(records) == 2
    assert last["statistics"]["counters"]["dlog_readers_opened"] == 1
    result = dlog(*tail)
    assert result.lines == ["first", ""]
    assert "# TYPE dlog_readers_opened counter\ndlog_readers_opened 1\n" in result.err


def test_logs_are_listed_shown_and_deleted(dlog: Dlog) -> None:
    assert dlog("log", "create", "a", "b", "shop/orders").code == 0
    assert dlog("log", "list").lines == ["a", "b", "shop/orders"]
    assert json.loads(dlog("log", "list", "shop", "--json").out) == ["shop/orders"]
    assert "segments" in json.loads(dlog("log", "show", "a", "--json").out)
    assert dlog("log", "delete", "a", "--yes").code == 0
    assert dlog("log", "list").lines == ["b", "shop/orders"]


def test_records_between_two_positions_are_counted(dlog: Dlog, file: Path) -> None:
    dlog("write", "orders", str(file), "--create", "--txid-from", "1")
    positions = [json.loads(line)["dlsn"] for line in dlog("read", "orders", "--json").lines]
    assert dlog("log", "count", "orders").lines == [str(len(positions))]
    result = dlog("log", "count", "orders", "--from", positions[1], "--before", positions[2], "--json")
    assert json.loads(result.out) == {"log": "orders", "records": 1}


def test_a_log_is_truncated_and_its_truncated_segments_are_purged(dlog: Dlog, tmp_path: Path) -> None:
    line = tmp_path / "line.txt"
    for number in range(3):
        line.write_text(f"{number}\n")
        assert dlog("write", "orders", str(line), "--create", "--txid-from", str(number)).code == 0
    result = dlog("log", "truncate", "orders", "--before", "3:0:0", "--json")
    assert json.loads(result.out) == {"log": "orders", "first_left": "3:0:0"}
    planned = json.loads(dlog("log", "purge", "orders", "--dry-run", "--json").out)
    assert [segment["segment_seqno"] for segment in planned["orders"]] == [1, 2]
    assert json.loads(dlog("log", "purge", "orders", "--json").out) == planned
    assert json.loads(dlog("log", "purge", "orders", "--json").out) == {"orders": []}
    assert dlog("read", "orders").lines == ["2"]
    assert "begins at 4:0:0" in dlog("log", "truncate", "orders", "--before", "latest").err
    assert dlog("read", "orders").lines == []


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["log", "truncate", "nothing", "--before", "3:0:0"], 3),
        (["log", "truncate", "orders", "--before", "17"], 2),
        (["log", "truncate", "orders", "--before", "earliest"], 2),
        (["log", "purge", "nothing"], 3),
        (["log", "count", "nothing"], 3),
        (["log", "count", "orders", "--from", "latest"], 2),
        (["read", "nothing"], 3),
        (["write", "nothing", "/dev/null"], 3),
        (["log", "show", "nothing"], 3),
        (["log", "delete", "nothing", "--yes"], 3),
        (["read", "orders", "--from", "some day"], 2),
        (["read", "orders", "--to", "earliest"], 2),
        (["log", "create", "bad\x00name"], 2),
        (["log", "list", "--uri", "http://host/path"], 2),
        (["nonsense"], 2),
        (["bench", "append", "--level", "ledger"], 2),
        (["bench", "append", "--level", "ledger", "--cluster", "3", "--batch", "7"], 2),
        (["bench", "latency", "--level", "ledger"], 2),
        (["bench", "latency", "--uri", "file:///nowhere", "--cluster", "3"], 2),
        (["bench", "append", "--uri", "file:///nowhere", "--cluster", "3"], 2),
        (["bench", "tail", "--size", "7"], 2),
        (["bench", "append", "--batch", "7", "--inflight", "3"], 2),
    ],
)
def test_a_failure_is_one_line_and_its_code(dlog: Dlog, arguments: list[str], code: int) -> None:
    result = dlog(*arguments)
    assert result.code == code
    assert result.out == ""
    assert "Traceback" not in result.err
    assert result.err.strip()
    if code != 2:  # click prints the usage too
        assert len(result.err.splitlines()) == 1


def test_creating_an_existing_log_is_code_4_without_exist_ok(dlog: Dlog) -> None:
    dlog("log", "create", "orders")
    assert dlog("log", "create", "orders").code == 4
    assert dlog("log", "create", "orders", "--exist-ok").code == 0


def test_a_txid_out_of_order_is_rejected_and_the_log_is_unchanged(dlog: Dlog, file: Path) -> None:
    dlog("write", "orders", str(file), "--create", "--txid-from", "100")
    result = dlog("write", "orders", str(file), "--txid-from", "50")
    assert result.code == 1
    assert "txid 50" in result.err
    assert len(dlog("read", "orders").lines) >= 5


def test_debug_shows_the_traceback(dlog: Dlog) -> None:
    result = dlog("--debug", "read", "nothing")
    assert result.code == 3
    assert "Traceback" in result.err


# Packages that `dlog --help` and the completion of a command's name must not import: they only list a table.
HEAVY = (
    "trio",
    "attr",
    "attrs",
    "asyncio",
    "ssl",
    "google",
    "crc32c",
    "snappy",
    "cramjam",
    "sqlite3",
    "pyspark",
    "kazoo",
    "rocksdict",
    "bookie",
    "ledger",
    "namespace",
    "dlog.errors",
    "dlog.config",
    "dlog.connect",
    "dlog.settings",
    "dlog.cli.terminal.options",
)


def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys; from dlog.cli.main import main; main(['--help']); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    for name in COMMANDS:
        assert f"  {name} " in out


def test_completing_the_name_of_a_command_imports_no_heavy_package() -> None:
    code = (
        "import os, sys; from dlog.cli.main import main; "
        f"os._exit = lambda _code: print([name for name in {HEAVY} if name in sys.modules]); main([])"
    )
    asked = {
        "_DLOG_COMPLETE": "bash_complete",
        "COMP_LINE": "dlog ",
        "COMP_WORDS": "dlog ",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **asked}
    )
    assert "plain,log\n" in done.stdout
    assert "\n[]\n" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(dlog: Dlog, name: str) -> None:
    result = dlog(name, "--help")
    assert result.code == 0
    assert "Usage:" in result.out


def test_pipelines_have_help_without_pyspark() -> None:
    absent = "import sys; sys.modules['pyspark'] = None; "
    code = absent + "from dlog.cli.main import main; main(['pipeline', '--help'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "archive" in done.stdout


def test_ctrl_c_ends_a_writer_with_the_count_of_durable_records(tmp_path: Path) -> None:
    environment = os.environ | {"DLOG_URI": (tmp_path / "namespace").as_uri()}
    command = [sys.executable, "-m", "dlog.cli.main"]
    subprocess.run([*command, "log", "create", "orders"], env=environment, check=True, capture_output=True)
    with (
        subprocess.Popen(
            [*command, "tail", "orders", "--count", "3"], env=environment, stdout=subprocess.PIPE
        ) as tail,
        subprocess.Popen(
            [*command, "write", "orders", "--json"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as writer,
    ):
        assert writer.stdin is not None
        assert tail.stdout is not None
        # The input stays open. Each line becomes durable and visible to another process. The tail starts at
        # the end of the log and does not print earlier lines, so send lines until it has printed three.
        sent = 0
        os.set_blocking(tail.stdout.fileno(), False)
        while tail.poll() is None:
            sent += 1
            writer.stdin.write(b"line %d\n" % sent)
            writer.stdin.flush()
            try:
                tail.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                assert sent < 600, "the tail did not print three lines"
        writer.send_signal(signal.SIGINT)
        out, err = writer.communicate(timeout=30)
    assert writer.returncode == 130
    assert b"Traceback" not in err
    durable = json.loads(out)["records"]
    assert 3 <= durable <= sent
    read = subprocess.run([*command, "read", "orders"], env=environment, check=True, capture_output=True)
    lines = read.stdout.splitlines()
    assert lines == [b"line %d" % number for number in range(1, durable + 1)]


def test_a_closed_output_ends_the_command_quietly(tmp_path: Path) -> None:
    environment = os.environ | {"DLOG_URI": (tmp_path / "namespace").as_uri()}
    command = [sys.executable, "-m", "dlog.cli.main"]
    lines = b"".join(b"a line of some length, number %d\n" % number for number in range(20_000))
    subprocess.run(
        [*command, "write", "orders", "--create"],
        env=environment,
        input=lines,
        check=True,
        capture_output=True,
    )
    with subprocess.Popen(
        [*command, "read", "orders"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline().endswith(b"number 0\n")
        reader.stdout.close()
        assert reader.stderr.read() == b""
    assert reader.returncode == 141
