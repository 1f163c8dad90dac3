"""How tests read through Apache's readers: by another one where one left a segment unread, and only there."""

from __future__ import annotations

from typing import Any

import pytest
from driver import DriverError
from java_streams import READ_CANCELLED, READERS_MAX, JavaLog

from dlog import DLSN

POSITIONS = [DLSN(1, 0, 0), DLSN(1, 1, 0), DLSN(2, 0, 0), DLSN(2, 1, 0)]
TRANSMIT_ERROR = 507


class ScriptedDriver:
    """Readers that give a log's records and end as they are told: how many records, then which code."""

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
            return self._answer(arguments["on"], arguments["count"])
        assert op in ("reader", "read-synchronously")
        name = arguments.get("name", "synchronous")
        there, code = self._script.pop(0)
        first = POSITIONS.index(DLSN(*arguments["dlsn"]))
        self._left[name] = (POSITIONS[first : first + there], code)
        return None if op == "reader" else self._answer(name, len(POSITIONS) + 1)

    def _answer(self, name: str, count: int) -> dict[str, Any]:
        left, code = self._left[name]
        given, left[:count] = left[:count], []
        records = [
            {
                "dlsn": [each.segment_seqno, each.entry_id, each.slot_id],
                "txid": 1,
                "payload": "",
                "sequence_id": 0,
            }
            for each in given
        ]
        if code is None or len(given) == count:
            return {"records": records}
        return {"records": records, "ended": {"class": "E", "message": "scripted", "code": code}}


def log_of(*script: tuple[int, int | None]) -> tuple[JavaLog, ScriptedDriver]:
    driver = ScriptedDriver(*script)
    return JavaLog(driver, "log"), driver  # type: ignore[arg-type]


async def test_a_reader_that_ended_itself_is_followed_by_one_from_its_last_record_on() -> None:
    log, driver = log_of((2, READ_CANCELLED), (2, READ_CANCELLED), (4, None))
    assert [each.dlsn for each in await log.read(4)] == POSITIONS
    assert sorted(driver.closed) == ["reader-0", "reader-1", "reader-2"]


async def test_a_reader_that_ended_itself_before_its_first_record_is_followed_by_one_from_the_start() -> None:
    log, _ = log_of((0, READ_CANCELLED), (4, None))
    assert [each.dlsn for each in await log.read(4)] == POSITIONS


async def test_a_reader_that_passed_over_records_is_followed_by_one_from_the_start() -> None:
    log, _ = log_of((2, None), (4, None))
    assert [each.dlsn for each in await log.read(4)] == POSITIONS
    log, _ = log_of((2, None), (3, READ_CANCELLED), (4, None))
    assert [each.dlsn for each in await log.read_synchronously(4)] == POSITIONS


async def test_a_synchronous_reader_that_ended_itself_after_the_last_record_is_not_believed() -> None:
    log, _ = log_of((4, READ_CANCELLED), (4, None))
    assert [each.dlsn for each in await log.read_synchronously(4)] == POSITIONS


async def test_another_error_of_a_reader_ends_the_reading() -> None:
    log, _ = log_of((2, TRANSMIT_ERROR))
    with pytest.raises(DriverError, match="scripted"):
        await log.read(4)
    log, _ = log_of((2, TRANSMIT_ERROR))
    with pytest.raises(DriverError, match="scripted"):
        await log.read_synchronously(4)


async def test_the_last_of_so_many_readers_is_believed() -> None:
    log, _ = log_of(*[(2, None)] * READERS_MAX)
    assert len(await log.read(4)) == 2
    log, _ = log_of(*[(2, READ_CANCELLED)] * READERS_MAX)
    with pytest.raises(DriverError, match="scripted"):
        await log.read_synchronously(4)


async def test_what_lies_before_a_position_is_read_beyond_the_number_asked_for() -> None:
    log, _ = log_of((4, None))
    assert [each.dlsn for each in await log.read(2, up_to=POSITIONS[2])] == POSITIONS[:3]
