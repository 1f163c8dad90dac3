"""An editor completes what a program opens, and shows its arguments; a type checker knows the types."""

from __future__ import annotations

import inspect
from typing import assert_type

import jedi
import pytest

import dlog
import dlog.aio
import dlog.blocking
from tests.places import ROOT

FACES = ("dlog", "dlog.aio", "dlog.blocking")
APPEND = (
    "append(payload: bytes | bytearray | memoryview, *, txid: int | None=None, key: Buffer | None=None,"
    " headers: Headers | None=None, sequence: int | None=None) -> DLSN"
)


def program(face: str, *blocks: str, last: str) -> list[str]:
    """The lines of a program of nested blocks."""
    is_async = face != "dlog.blocking"
    blocks = (f"with {face}.open_namespace('file:///shop') as ns", *blocks)
    lines = [f"import {face}", "async def main():" if is_async else "def main():"]
    for depth, block in enumerate(blocks, 1):
        lines.append("    " * depth + ("async " if is_async else "") + block + ":")
    lines.append("    " * (len(blocks) + 1) + last)
    return lines


def script(face: str, *blocks: str, last: str) -> tuple[jedi.Script, int, int]:
    """The program, with the cursor at the end of its last line."""
    lines = program(face, *blocks, last=last)
    code = "\n".join(lines)
    return jedi.Script(code, project=jedi.Project(ROOT, sys_path=[str(ROOT)])), len(lines), len(lines[-1])


def completed(face: str, *blocks: str, last: str) -> set[str]:
    cursor, line, column = script(face, *blocks, last=last)
    return {each.name for each in cursor.complete(line, column)}


def signatures(face: str, *blocks: str, last: str) -> list[str]:
    cursor, line, column = script(face, *blocks, last=last)
    return [each.to_string() for each in cursor.get_signatures(line, column)]


WRITER = "with ns.open_writer('orders') as log"
READER = "with ns.open_reader('orders') as reader"


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
def test_an_editor_completes_what_was_opened(face: str) -> None:
    namespace = {"open_writer", "open_reader", "create_log", "describe_log", "properties", "health"}
    assert completed(face, last="ns.") >= namespace
    assert completed(face, last="ns.repair.") >= {"check", "verify", "recover"}
    assert completed(face, WRITER, last="log.") >= {"append", "submit", "flush", "state", "failure"}
    assert completed(face, READER, last="reader.") >= {"read_batch", "commit", "position"}
    assert completed(face, READER, "for each in reader", last="each.") >= {"dlsn", "txid", "payload"}


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
def test_an_editor_shows_the_arguments_of_an_append(face: str) -> None:
    assert set(signatures(face, WRITER, last="log.append(")) == {APPEND}


@pytest.mark.slow
def test_a_writer_without_a_block_is_completed_too() -> None:
    assert set(signatures("dlog.blocking", last="ns.open_writer('orders').append(")) == {APPEND}


@pytest.mark.slow
@pytest.mark.parametrize("face", [dlog.Namespace, dlog.aio.Namespace, dlog.blocking.Namespace])
def test_a_notebook_shows_the_arguments_of_each_call(face: type) -> None:
    """A notebook looks at the objects themselves, so it knows the calls that a face makes from others."""
    for name in ("open_writer", "open_reader", "create_log", "describe_log"):
        shown = jedi.Interpreter(f"face.{name}(", [{"face": face}]).get_signatures()
        wanted = list(inspect.signature(getattr(dlog.Namespace, name)).parameters)
        assert shown
        assert [each.name for each in shown[0].params] == wanted


def types_of_blocking(namespace: dlog.blocking.Namespace) -> None:
    """Never called: the type checker of ``make check`` reads it, and those below."""
    with namespace.open_writer("orders", create=True) as log:
        assert_type(log, dlog.blocking.LogWriter)
        assert_type(log.append(b"first"), dlog.DLSN)
        assert_type(log.append_many([b"second"]), list[dlog.DLSN])
        assert_type(log.state, dlog.WriterState)
    with namespace.open_reader("orders", follow=False) as reader:
        for record in reader:
            assert_type(record, dlog.Record)
    assert_type(namespace.list_logs(), list[str])


async def types_of_aio(namespace: dlog.aio.Namespace) -> None:
    async with namespace.open_writer("orders", create=True) as log:
        assert_type(log, dlog.aio.LogWriter)
        assert_type(await log.append(b"first"), dlog.DLSN)
        assert_type(await log.submit(b"second"), dlog.DLSN)
    async with namespace.open_reader("orders", follow=False) as reader:
        async for record in reader:
            assert_type(record, dlog.Record)
    assert_type(await namespace.list_logs(), list[str])


async def types_of_trio(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("orders", create=True) as log:
        assert_type(log, dlog.LogWriter)
        assert_type(await log.append(b"first"), dlog.DLSN)
    async with namespace.open_reader("orders", follow=False) as reader:
        async for record in reader:
            assert_type(record, dlog.Record)
    assert_type(await namespace.list_logs(), list[str])
