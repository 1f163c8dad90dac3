"""Our log writer as a driver process, so that tests can kill and pause it like Apache's.

It performs ``writer``, ``flood`` and ``writer-close`` as ``java/interop/StreamsDriver.java`` does.

``python our_streams_driver.py NAMESPACE_URI SESSION_TIMEOUT_MS``
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from typing import Any

import attrs
import trio

import dlog
from tests.interop.conversation import converse, send


@attrs.define(eq=False)
class _Held:
    """A writer, and the events of the task that holds it open."""

    writer: dlog.LogWriter | None = None
    close: trio.Event = attrs.field(factory=trio.Event)
    closed: trio.Event = attrs.field(factory=trio.Event)


class OurStreamsDriver:
    """The requests, and the writers that they name."""

    def __init__(self, namespace: dlog.Namespace, nursery: trio.Nursery) -> None:
        self._namespace, self._nursery = namespace, nursery
        self._writers: dict[str, _Held] = {}

    async def perform(self, op: str, arguments: dict[str, Any]) -> Any:
        """Perform a request; the result can be encoded as JSON."""
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
        """Hold a writer open until ``writer-close``, in a task of its own: the request's task ends before."""
        try:
            async with self._namespace.open_writer(log, create=True) as held.writer:
                task_status.started(held.writer.last_txid)
                await held.close.wait()
        finally:
            held.closed.set()

    async def _flood(
        self, on: str, prefix: str, first_txid: int, in_flight: int, keys: bool = False
    ) -> dict[str, Any]:
        """Write prefix + number from 1 on until a write fails; send an event for each acknowledged record.

        Args:
            keys: Each record has its payload as its key and as a header, too.

        Returns:
            How many records were submitted, the failure, and the numbers of the records by outcome.
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
                    key, headers = (payload, {"header": payload}) if keys else (None, None)
                    pending = writer.submit(payload, txid=first_txid + submitted, key=key, headers=headers)
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
                send({"event": "acked", "number": number, "dlsn": place})
            outcomes[pending.outcome.name].append(number)
        return {
            "submitted": submitted,
            "failure": {"class": type(failure).__name__, "message": str(failure), "code": None},
            "outcomes": outcomes,
        }


async def main(uri: str, session_timeout_ms: int) -> None:
    """Perform requests until stdin ends."""
    config = dlog.NamespaceConfig(
        session_timeout_ms=session_timeout_ms,
        client_id="our process",
        writer=dlog.WriterConfig(keys_and_headers=True),
    )
    async with dlog.open_namespace(uri, config=config) as namespace, trio.open_nursery() as nursery:
        await converse(OurStreamsDriver(namespace, nursery).perform)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    trio.run(main, sys.argv[1], int(sys.argv[2]))
