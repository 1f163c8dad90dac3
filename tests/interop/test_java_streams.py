"""The helper that reads by Apache's readers opens another reader only if one left a segment unread."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from dlog import DLSN
from tests.interop.driver import DriverError
from tests.interop.java_streams import END_OF_STREAM, READ_CANCELLED, READERS_MAX, JavaLog

POSITIONS = [DLSN(1, 0, 0), DLSN(1, 1, 0), DLSN(2, 0, 0), DLSN(2, 1, 0)]
TRANSMIT_ERROR = 507
WAITS_FOR_EVER = -1


class ScriptedDriver:
    """Readers that follow a script. Each item: the number of records, the code of the error after them."""

    def __init__(self, *script: tuple[int, int | None]) -> None:
        self._script = list(script)
        self._left: dict[str, tuple[list[DLSN], int | None]] = {}
        self.closed: list[str] = []

    def name(self, kind: str) -> str:
        return f"{kind}-{len(self._left)}"

    async def call(self, op: str, **arguments: Any) -> Any:
        if op == "reader-close":
            self.closed.append(arguments["on"])
            return None
        if op == "read":
            return self._reply(arguments["on"], arguments["count"])
        assert op in ("reader", "read-synchronously")
        name = arguments.get("name", "synchronous")
        count, code = self._script.pop(0)
        first = POSITIONS.index(DLSN(*arguments["dlsn"]))
        if code == WAITS_FOR_EVER:
            await trio.sleep_forever()
        self._left[name] = (POSITIONS[first : first + count], code)
        return None if op == "reader" else self._reply(name, len(POSITIONS) + 1)

    def _reply(self, name: str, count: int) -> dict[str, Any]:
        left, code = self._left[name]
        returned, left[:count] = left[:count], []
        records = [
            {
                "dlsn": [each.segment_seqno, each.entry_id, each.slot_id],
                "txid": 1,
                "payload": "",
                "sequence_id": 0,
            }
            for each in returned
        ]
        if code is None or len(returned) == count:
            return {"records": records}
        return {"records": records, "ended": {"class": "E", "message": "scripted", "code": code}}


def log_of(*script: tuple[int, int | None]) -> tuple[JavaLog, ScriptedDriver]:
    driver = ScriptedDriver(*script)
    return JavaLog(driver, "log"), driver  # type: ignore[arg-type]


async def test_after_a_cancelled_read_a_new_reader_starts_at_the_last_record() -> None:
    log, driver = log_of((2, READ_CANCELLED), (2, READ_CANCELLED), (4, None))
    assert [each.dlsn for each in await log.read(4)] == POSITIONS
    assert sorted(driver.closed) == ["reader-0", "reader-1", "reader-2"]


async def test_after_a_read_cancelled_before_its_first_record_a_new_reader_starts_at_the_start() -> None:
    log, _ = log_of((0, READ_CANCELLED), (4, None))
    assert [each.dlsn for each in await log.read(4)] == POSITIONS


async def test_after_a_reader_that_skipped_records_a_new_reader_starts_at_the_start() -> None:
    log, _ = log_of((2, None), (4, None))
    assert [each.dlsn for each in await log.read(4)] == POSITIONS
    log, _ = log_of((2, None), (3, READ_CANCELLED), (4, None))
    assert [each.dlsn for each in await log.read_synchronously(4)] == POSITIONS


async def test_a_synchronous_read_cancelled_after_the_last_record_is_repeated() -> None:
    log, _ = log_of((4, READ_CANCELLED), (4, None))
    assert [each.dlsn for each in await log.read_synchronously(4)] == POSITIONS


async def test_another_error_of_a_reader_is_raised() -> None:
    log, _ = log_of((2, TRANSMIT_ERROR))
    with pytest.raises(DriverError, match="scripted"):
        await log.read(4)
    log, _ = log_of((2, TRANSMIT_ERROR))
    with pytest.raises(DriverError, match="scripted"):
        await log.read_synchronously(4)


async def test_the_result_of_the_last_permitted_reader_is_taken_as_it_is() -> None:
    log, _ = log_of(*[(2, None)] * READERS_MAX)
    assert len(await log.read(4)) == 2
    log, _ = log_of(*[(2, READ_CANCELLED)] * READERS_MAX)
    with pytest.raises(DriverError, match="scripted"):
        await log.read_synchronously(4)


async def test_records_up_to_a_position_are_read_beyond_the_requested_number() -> None:
    log, _ = log_of((4, None))
    assert [each.dlsn for each in await log.read(2, up_to=POSITIONS[2])] == POSITIONS[:3]


async def test_a_reader_that_stands_still_or_ends_early_is_followed_by_one_that_reads_to_the_end() -> None:
    log, driver = log_of(
        (2, None), (3, END_OF_STREAM), (1, READ_CANCELLED), (3, END_OF_STREAM), (4, END_OF_STREAM)
    )
    assert [each.dlsn for each in await log.read_to_end(4)] == POSITIONS
    assert len(driver.closed) == 5


async def test_a_sealed_log_that_no_reader_reads_to_the_end_or_with_a_record_too_many_is_an_error() -> None:
    log, _ = log_of(*[(3, END_OF_STREAM)] * READERS_MAX)
    assert len(await log.read_to_end(4)) == 3  # the test that expects 4 fails
    for expected, code in ((4, None), (3, END_OF_STREAM)):
        log, _ = log_of(*[(4, code)] * READERS_MAX)
        with pytest.raises(AssertionError, match="no end behind"):
            await log.read_to_end(expected)
    log, _ = log_of((2, TRANSMIT_ERROR))
    with pytest.raises(DriverError, match="scripted"):
        await log.read_to_end(4)


async def test_a_synchronous_reader_that_waits_for_ever_is_followed_by_the_next(
    autojump_clock: object,
) -> None:
    log, _ = log_of((2, WAITS_FOR_EVER), (4, None))
    assert [each.dlsn for each in await log.read_synchronously(4)] == POSITIONS
