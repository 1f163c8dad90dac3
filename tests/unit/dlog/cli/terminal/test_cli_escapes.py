"""Control characters of payloads, names and metadata do not reach a terminal."""

# covers: dlog/cli/terminal/escapes.py

from __future__ import annotations

import contextlib
import json
import pty
from pathlib import Path

import pytest

from dlog import blocking
from dlog.cli import main
from dlog.cli.terminal.escapes import escaped, escaped_bytes
from dlog.cli.terminal.output import print_facts, print_json, print_note, print_table
from dlog.errors import LogMetadataError

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2066\u200f\u2028\r\x7f"
CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, 0x2028, 0x2029)]
CONTROLS += [chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x061C)]


def on_a_terminal(*arguments: str) -> bytes:
    """What a command writes if stdout is a terminal; less than the terminal buffers."""
    master, terminal = pty.openpty()
    with open(master, "rb", buffering=0) as reader:
        with open(terminal, "w", encoding="utf-8") as stdout, contextlib.redirect_stdout(stdout):
            assert main.main(arguments) == 0
        written = b""
        while True:
            try:
                data = reader.read(65536)
            except OSError:  # Linux reports the end of a terminal so
                return written.replace(b"\r\n", b"\n")
            written += data


def test_every_control_character_is_escaped_and_other_text_is_not() -> None:
    assert [each for each in CONTROLS if each != "\t" and escaped(f"a{each}b") == f"a{each}b"] == []
    assert escaped("a\tb \u00e9\u4e16\u754c \U0001f600") == "a\tb \u00e9\u4e16\u754c \U0001f600"
    assert escaped("\x1b[31m\u202e\n") == "\\x1b[31m\\u202e\\x0a"
    assert escaped("two\nlines", keep_newlines=True) == "two\nlines"
    assert escaped_bytes(b"\xff\x1b\xc2\x9b") == b"\\xff\\x1b\\x9b"
    assert escaped("\udcff") == "\\udcff"


@pytest.mark.slow
def test_a_payload_is_escaped_on_a_terminal_and_raw_in_a_file(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    uri = (tmp_path / "namespace").as_uri()
    with blocking.open_namespace(uri) as namespace, namespace.open_writer("orders", create=True) as log:
        log.append(HOSTILE.encode())
    shown = on_a_terminal("read", "orders", "--uri", uri)
    assert shown == escaped(HOSTILE).encode() + b"\n"
    assert on_a_terminal("tail", "orders", "--from", "earliest", "--count", "1", "--uri", uri) == shown
    assert on_a_terminal("read", "orders", "--raw", "--uri", uri) == HOSTILE.encode() + b"\n"
    documents = on_a_terminal("read", "orders", "--json", "--uri", uri)
    assert documents.isascii()
    assert b"\x1b" not in documents
    assert json.loads(documents)["payload"] == HOSTILE
    capfdbinary.readouterr()
    assert main.main(["read", "orders", "--uri", uri]) == 0
    assert capfdbinary.readouterr().out == HOSTILE.encode() + b"\n"


def test_tables_facts_notes_and_json_hold_no_controls(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [[HOSTILE]])
    print_facts([("name", HOSTILE), (HOSTILE, "value")])
    print_json({"name": HOSTILE})
    print_note(HOSTILE)
    captured = capsys.readouterr()
    printed = captured.out + captured.err
    assert printed.count("owned") == 5
    assert [each for each in CONTROLS if each != "\n" and each in printed] == []


def test_an_error_that_quotes_a_name_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LogMetadataError(f"the node holds {HOSTILE}")

    monkeypatch.setattr(main.program, "main", fail)
    assert main.main([]) != 0
    printed = capsys.readouterr().err
    assert "owned" in printed
    assert [each for each in CONTROLS if each != "\n" and each in printed] == []
