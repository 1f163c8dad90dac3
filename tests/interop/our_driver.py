"""Our ledger client as a driver process, so that tests can kill and pause it like Apache's.

It performs the requests of ``java/interop/LedgerDriver.java`` for writing, in the form of ``conversation``:
``client``, ``create``, ``add``, ``add_many``, ``flood``, ``explicit_lac``, ``state``, ``close``.

``python our_driver.py ZOOKEEPER_HOSTS``
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import trio

from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.digest import DigestType
from ledger.metadata_store.store import MetadataStore
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.transport.config import TransportConfig
from ledger.transport.dial import dial_tcp
from ledger.write.handle import WriteHandle
from tests.interop.conversation import converse, send


class OurDriver:
    """The requests, and the objects that they name."""

    def __init__(self, store: MetadataStore, nursery: trio.Nursery) -> None:
        self._store, self._nursery = store, nursery
        self._clients: dict[str, LedgerClient] = {}
        self._handles: dict[str, WriteHandle] = {}

    async def perform(self, op: str, arguments: dict[str, Any]) -> Any:
        """Perform a request; the result can be encoded as JSON."""
        return await getattr(self, f"do_{op}")(**arguments)

    async def do_client(self, name: str, root: str, version: Literal[2, 3]) -> bool:
        self._clients[name] = await self._nursery.start(self._keep_client, root, version)
        return True

    async def do_create(
        self, client: str, handle: str, sizes: list[int], digest: str, password: str
    ) -> dict[str, Any]:
        made = self._handles[handle] = await self._clients[client].create(
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
            digest_type=DigestType[digest],
            password=bytes.fromhex(password),
        )
        return _state(made)

    async def do_add(self, handle: str, payload: str) -> int:
        return await self._handles[handle].append(bytes.fromhex(payload))

    async def do_add_many(self, handle: str, payloads: list[str]) -> list[int]:
        return list(await self._handles[handle].append_many([bytes.fromhex(each) for each in payloads]))

    async def do_explicit_lac(self, handle: str) -> bool:
        await self._handles[handle].write_explicit_lac()
        return True

    async def do_state(self, handle: str) -> dict[str, Any]:
        return _state(self._handles[handle])

    async def do_close(self, handle: str) -> dict[str, Any]:
        await self._handles[handle].close()
        return _state(self._handles[handle])

    async def do_flood(self, handle: str, prefix: str, count: int, in_flight: int) -> int:
        """Add ``prefix`` + index, ``in_flight`` at a time; send an event for each confirmation."""
        writer = self._handles[handle]

        def confirmed(lac: int, error: BaseException | None) -> None:
            if error is None:
                send({"event": "acked", "handle": handle, "entry_id": lac})

        writer.on_confirmed(confirmed)
        for index in range(count):
            entry_id = writer.submit(f"{prefix}{index}".encode())
            if entry_id >= in_flight:
                await writer.wait_confirmed(entry_id - in_flight)
        await writer.wait_confirmed(writer.last_pushed)
        return count

    async def _keep_client(
        self, root: str, version: Literal[2, 3], *, task_status: trio.TaskStatus[LedgerClient]
    ) -> None:
        config = ClientConfig(transport=TransportConfig(add_version=version))
        async with open_ledger_client(self._store, dial_tcp, config, root=root) as client:
            task_status.started(client)
            await trio.sleep_forever()


def _state(handle: WriteHandle) -> dict[str, Any]:
    return {
        "ledger_id": handle.ledger_id,
        "lac": handle.lac,
        "last_pushed": handle.last_pushed,
        "length": handle.length_bytes,
        "ensembles": [[each.first_entry_id, list(each.bookies)] for each in handle.metadata.ensembles],
        "write_quorum": handle.metadata.write_quorum,
    }


async def main(hosts: str) -> None:
    """Perform requests until stdin ends."""
    async with open_zookeeper_store(hosts) as store, trio.open_nursery() as nursery:
        await converse(OurDriver(store, nursery).perform)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
