"""Events: names, fields and context of log lines, and their form in JSON."""

# covers: dlog/events.py

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

import dlog
import dlog.blocking
import dlog.events
from ledger.runtime.events import FORMAT_VARIABLE, JsonFormatter, event, event_context
from ledger.runtime.log_lines import flush_lines
from tests.places import ROOT
from tests.source_tree import modules


def line(message: str, *args: object, **options: object) -> logging.LogRecord:
    logger = logging.Logger("dlog.test")
    return logger.makeRecord("dlog.test", logging.WARNING, "f", 1, message, args, None, **options)  # type: ignore[arg-type]


def test_a_line_has_its_text_name_fields_and_context() -> None:
    with event_context(service="billing"), event_context(request=7):
        record = line("log %s failed", "orders", extra=event("log.failed", log="orders", error=OSError("x")))
    formatted = json.loads(JsonFormatter().format(record))
    assert formatted.pop("time").endswith("Z")
    assert formatted.pop("pid") == record.process
    assert formatted == {
        "level": "WARNING",
        "logger": "dlog.test",
        "message": "log orders failed",
        "event": "log.failed",
        "fields": {"log": "orders", "error": "x"},
        "context": {"service": "billing", "request": 7},
    }


def test_a_context_ends_with_its_block() -> None:
    with event_context(a=1):
        with event_context(a=2):
            assert event("x")["dlog"]["context"] == {"a": 2}  # type: ignore[index]
        assert event("x")["dlog"]["context"] == {"a": 1}  # type: ignore[index]
    assert event("x")["dlog"]["context"] == {}  # type: ignore[index]


@given(st.text(), st.dictionaries(st.text(), st.text() | st.binary()))
def test_no_value_adds_a_line_or_a_control_character(message: str, fields: dict[str, object]) -> None:
    record = line("%s", message, extra={"dlog": {"event": message, "fields": fields}})
    formatted = JsonFormatter().format(record)
    assert formatted.isascii()
    assert formatted.isprintable()
    assert json.loads(formatted)["message"] == message


def test_a_traceback_and_the_lines_of_others_are_formatted() -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        logger = logging.Logger("kazoo")
        record = logger.makeRecord(
            "kazoo", logging.ERROR, "f", 1, "lost", (), sys.exc_info(), extra={"dlog": 5}
        )
    formatted = json.loads(JsonFormatter().format(record))
    assert formatted["error"].endswith("ValueError: bad")
    assert "event" not in formatted


def test_every_log_line_of_the_library_is_an_event() -> None:
    plain = []
    for module in modules():
        # Commands print for people; the audit log has a form of its own.
        if module.package not in ("dlog", "ledger", "namespace") or module.lives_in(
            ("dlog/cli/", "ledger/runtime/audit.py")
        ):
            continue
        for node in module.nodes:
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id.lower() in ("logger", "log", "_logger")
                and node.func.attr in ("debug", "info", "warning", "error", "exception", "critical")
                and not any(
                    keyword.arg == "extra" and ast.unparse(keyword.value).startswith(("event(", "extra"))
                    for keyword in node.keywords
                )
            ):
                plain.append(f"{module.path}:{node.lineno}")
    assert plain == []


@pytest.mark.slow
async def test_events_of_a_writer_carry_the_context_of_its_block(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dlog")

    async def write(namespace: dlog.Namespace, log: str) -> None:
        with dlog.events.event_context(service=log):
            async with namespace.open_writer(log, create=True) as writer:
                await writer.append(b"x")

    async with dlog.open_namespace(tmp_path.as_uri()) as namespace, trio.open_nursery() as nursery:
        nursery.start_soon(write, namespace, "a")
        nursery.start_soon(write, namespace, "b")
    found = [
        (known["event"], known["fields"]["log"], known["context"]["service"])
        for record in caplog.records
        if (known := getattr(record, dlog.events.ATTRIBUTE, {})).get("event", "").startswith("segment.")
    ]
    assert sorted(found) == [
        ("segment.begun", "a", "a"),
        ("segment.begun", "b", "b"),
        ("segment.completed", "a", "a"),
        ("segment.completed", "b", "b"),
    ]


@pytest.mark.slow
def test_calls_without_async_carry_the_context_of_their_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dlog")
    with (
        dlog.events.event_context(service="billing"),
        dlog.blocking.open_namespace(tmp_path.as_uri()) as namespace,
        namespace.open_writer("log", create=True) as writer,
    ):
        writer.append(b"x")
    assert flush_lines(60)
    contexts = [getattr(record, dlog.events.ATTRIBUTE)["context"] for record in caplog.records]
    assert contexts
    assert all(context == {"service": "billing"} for context in contexts)


def test_the_page_of_events_has_each_event() -> None:
    code = "".join(
        path.read_text("utf-8")
        for folder in ("dlog", "ledger", "namespace", "bookie/embedded")
        for path in (ROOT / folder).rglob("*.py")
    )
    logged = set(re.findall(r'\bevent\(\s*"([a-z_.]+)"', code))
    page = (ROOT / "docs" / "events.md").read_text("utf-8")
    table = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`([a-z_.]+)`", table)) == logged


@pytest.mark.slow
@pytest.mark.parametrize(("form", "first"), [("json", "{"), ("text", "now:")])
def test_a_program_logs_in_the_form_that_the_environment_asks_for(form: str, first: str) -> None:
    script = (
        "import logging; from ledger.runtime.events import event, start_logging\n"
        "start_logging(logging.INFO, 'now: %(message)s')\n"
        "logging.getLogger('x').info('hello', extra=event('x.y'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={FORMAT_VARIABLE: form}, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stderr.startswith(first)
    assert "hello" in done.stderr


@pytest.mark.slow
def test_an_unknown_form_is_refused_with_the_two_that_there_are(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dlog.cli.main", "log", "list", "--uri", tmp_path.as_uri()],
        env={**os.environ, FORMAT_VARIABLE: "xml"},
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "DLOG_LOG_FORMAT='xml': it is `text` or `json`" in done.stderr
