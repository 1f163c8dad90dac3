"""Our writer as a process in conversation, so that it can be killed and stopped like Apache's.

It understands ``writer``, ``flood`` and ``writer-close`` as ``java/interop/StreamsDriver.java`` does.

``python our_streams_driver.py NAMESPACE_URI SESSION_TIMEOUT_MS``
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from typing import Any

import attrs
import trio
from conversation import converse, tell

import dlog


@attrs.define(eq=False)
class _Held:
    """A writer and the task that has it open."""

    writer: dlog.LogWriter | None = None
    close: trio.Event = attrs.field(factory=trio.Event)
    closed: trio.Event = attrs.field(factory=trio.Event)


class OurStreamsDriver:
    """The writers that requests name, and the requests."""

    def __init__(self, namespace: dlog.Namespace, nursery: trio.Nursery) -> None:
        self._namespace, self._nursery = namespace, nursery
        self._writers: dict[str, _Held] = {}

    async def answer(self, op: str, arguments: dict[str, Any]) -> Any:
        """Do what is asked."""
        match op:
            case "writer":
                held = _Held()
                self._writers[arguments["name"]] = held
                return await self._nursery.start(self._hold, arguments["log"], held)
            case "flood":
                return await self._flood(**arguments)
            case "writer-close":
                held = self._writers[arguments["on"]]
                held.close.set()
                await held.closed.wait()
                return None
            case _:
                raise ValueError(f"unknown request {op}")

    async def _hold(self, log: str, held: _Held, *, task_status: trio.TaskStatus[int]) -> None:
        """Keep a writer open until told to close it; for a task, as a request's own ends with its answer."""
        try:
            async with self._namespace.open_writer(log, create=True) as held.writer:
                task_status.started(held.writer.last_txid)
                await held.close.wait()
        finally:
            held.closed.set()

    async def _flood(self, on: str, prefix: str, first_txid: int, in_flight: int) -> dict[str, Any]:
        """Write prefix + number from 1 on until a write fails; tell of each that is acknowledged, in order.

        Returns:
            What had been told of every record once that was decided: numbers by outcome.
        """
        writer = self._writers[on].writer
        assert writer is not None
        waiting: deque[tuple[int, dlog.Pending]] = deque()
        outcomes: dict[str, list[int]] = {each.name: [] for each in dlog.RecordOutcome}
        failure: dlog.DLogError | None = None
        submitted = 0
        while failure is None or waiting:
            while failure is None and len(waiting) < in_flight:
                try:
                    payload = b"%s%d" % (prefix.encode(), submitted + 1)
                    pending = writer.submit(payload, txid=first_txid + submitted)
                except dlog.WriteError as exc:
                    failure = exc
                    break
                submitted += 1
                waiting.append((submitted, pending))
            if not waiting:
                break
            number, pending = waiting.popleft()
            try:
                dlsn = await pending
            except dlog.WriteError as exc:
                failure = failure or exc
            else:
                place = [dlsn.segment_seqno, dlsn.entry_id, dlsn.slot_id]
                tell({"event": "acked", "number": number, "dlsn": place})
            outcomes[pending.outcome.name].append(number)
        return {
            "submitted": submitted,
            "failure": {"class": type(failure).__name__, "message": str(failure), "code": None},
            "outcomes": outcomes,
        }


async def main(uri: str, session_timeout_ms: int) -> None:
    """Answer until stdin ends."""
    config = dlog.NamespaceConfig(session_timeout_ms=session_timeout_ms, client_id="our process")
    async with dlog.open_namespace(uri, config=config) as namespace, trio.open_nursery() as nursery:
        await converse(OurStreamsDriver(namespace, nursery).answer)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trio.run(main, sys.argv[1], int(sys.argv[2]))
