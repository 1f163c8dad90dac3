"""An error ends its domain and nothing else; cancellation and Ctrl-C pass."""

from __future__ import annotations

import logging
import struct

import pytest
import trio

from ledger.runtime.tasks.failure_domain import contained_failures, failure_domain, first_line


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        MemoryError(),
        RecursionError(),
        struct.error("y"),
        AssertionError(),
        ExceptionGroup("many", [OSError("a"), KeyError("b")]),
    ],
)
def test_every_exception_ends_the_domain_with_one_line_and_one_count(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    before = contained_failures["a test"]
    with caplog.at_level(logging.ERROR), failure_domain("a test", ledger_id=7, peer="10.0.0.1") as domain:
        raise error
    assert domain.error is error
    assert contained_failures["a test"] == before + 1
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("a test, ledger 7, peer 10.0.0.1: ended by ")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_ends_a_program_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), failure_domain("a test"):
        raise error


async def test_a_cancellation_in_a_group_passes_and_its_errors_end_here() -> None:
    before = contained_failures["a nursery"]

    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while it was cancelled")

    with trio.CancelScope() as scope:
        with failure_domain("a nursery"):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                nursery.start_soon(trio.sleep_forever)
                await trio.lowlevel.checkpoint()
                scope.cancel()
                await trio.sleep_forever()
        raise AssertionError("the cancellation was taken")
    assert scope.cancelled_caught
    assert contained_failures["a nursery"] == before + 1


def test_a_text_of_a_peer_adds_no_line_and_no_control_character() -> None:
    line = first_line(ValueError("bad\x1b[31m name" + "x" * 1000 + "\nsecond line"))
    assert line.startswith("bad?[31m name")
    assert len(line) == 300


def test_an_error_whose_text_cannot_be_made_has_a_line() -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no")

    assert "UnicodeDecodeError" in first_line(UnspeakableError())
