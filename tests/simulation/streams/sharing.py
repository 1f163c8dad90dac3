"""Programs of a world that share the writer of a log: where they meet, and the record of what each submitted.

Inside: connections over the simulated network, the recorder of one shared writer. Not inside: what writers do
(``writers``), the rules (``dlog.testing.history``).
Always: a connection shows the key of the owner's node, as over TCP, so one that finds the next process of the
same name is not served.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast
from unittest.mock import patch

import trio

from dlog.errors import RecordOutcome
from dlog.format.record import Record
from dlog.forwarding.forward_machine import Group
from dlog.forwarding.meeting import NodeMeeting, Serve
from dlog.forwarding.shared_writer import SharedLogWriter
from dlog.testing.history import LogHistory, Submission
from ledger.runtime.tasks.service_tasks import ServiceTasks
from ledger.transport.dial import Address
from namespace.log_nodes import LogNodes
from namespace.policy import Right
from tests.simulation.network import Network, Node

TXID = 7  # of every record: programs that share a log have no order of ids among them
CONNECT_S = 2.0
KEY_BYTES = 8


class SimulatedMeeting(NodeMeeting):
    """Owners and forwarders on the simulated network."""

    def __init__(self, network: Network, node: Node, rng: random.Random, nodes: LogNodes) -> None:
        super().__init__(nodes)
        self._network, self._node, self._rng = network, node, rng

    def _is_ours(self, address: str) -> bool:
        return "#" in address

    async def check(self, name: str, right: Right) -> None:
        """No program proves a name."""

    @asynccontextmanager
    async def connected(self, address: str) -> AsyncIterator[trio.abc.Stream | None]:
        """See ``NetworkMeeting.connected``."""
        name, _, key = address.partition("#")
        stream: trio.abc.Stream | None = None
        with trio.move_on_after(CONNECT_S):
            try:
                stream = await self._network.dial(self._node, cast("Address", name))
                await stream.send_all(bytes.fromhex(key))
            except (OSError, trio.BrokenResourceError):
                stream = None
        try:
            yield stream
        finally:
            if stream is not None:
                await trio.aclose_forcefully(stream)

    @asynccontextmanager
    async def _door(self, serve: Serve, tasks: ServiceTasks) -> AsyncIterator[str]:
        key = self._rng.randbytes(KEY_BYTES)

        async def greet(stream: trio.abc.Stream) -> None:
            shown = b""
            try:
                while len(shown) < KEY_BYTES and (chunk := await stream.receive_some(KEY_BYTES - len(shown))):
                    shown += bytes(chunk)
            except trio.BrokenResourceError:
                shown = b""
            if shown == key:
                await serve(stream, None)
            await trio.aclose_forcefully(stream)

        self._node.accept = lambda stream: tasks.start_soon(greet, stream)
        try:
            yield f"{self._node.name}#{key.hex()}"
        finally:
            self._node.accept = None


class SharedRecorder:
    """Notes every record that a shared writer takes from now on; see ``dlog.testing.recording``."""

    def __init__(self, writer: SharedLogWriter, history: LogHistory) -> None:
        self.history = history
        self.submissions: list[Submission] = []
        machine: Any = writer._machine_of_all
        take = machine.take

        def noted(payloads: Sequence[bytes], *arguments: Any, **options: Any) -> Group:
            group: Group = take(payloads, *arguments, **options)
            batch = object() if options.get("is_atomic") else None
            for slot, payload in enumerate(payloads):
                self._note(payload, group, slot, batch)
            return group

        machine.take = noted

    def _note(self, payload: bytes, group: Group, slot: int, batch: object) -> None:
        submission = self.history.submitted(payload, TXID, group=batch)
        self.submissions.append(submission)

        def settled() -> None:
            outcome = group.outcome
            dlsn = group.dlsn(slot) if outcome is RecordOutcome.DURABLE else None
            self.history.settled(submission, outcome, dlsn)

        group.on_settled(settled)


def records_of_a_producer_are_stored_once_and_in_order(records: Iterable[Record]) -> str | None:
    """Complain unless the numbers of each producer grow."""
    newest: dict[str, int] = {}
    for record in records:
        if record.producer is None:
            return f"{record.dlsn} has no producer"
        producer, number = record.producer
        if number <= newest.get(producer, -1):
            return f"record {number} of {producer} comes after {newest[producer]}, at {record.dlsn}"
        newest[producer] = number
    return None


@contextmanager
def repeatable_producers(seed: int) -> Iterator[None]:
    """Let names of producers follow from the seed, so that a run can be repeated."""
    rng = random.Random(f"producers {seed}")

    def token_hex(size_bytes: int) -> str:
        return rng.randbytes(size_bytes).hex()

    with (
        patch("dlog.operations.opening.token_hex", token_hex),
        patch("dlog.forwarding.shared_shell.secrets.token_hex", token_hex),
    ):
        yield
