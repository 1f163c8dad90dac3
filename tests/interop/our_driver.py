"""Our ledger client as a process in conversation, so that it can be killed and stopped like Apache's.

It understands what ``java/interop/LedgerDriver.java`` does for writing, in the same form (``driver``):
``client``, ``create``, ``add``, ``add_many``, ``flood``, ``explicit_lac``, ``state``, ``close``. Errors carry
the class of the exception. The end of stdin ends the process, ledgers being left open.

``python our_driver.py ZOOKEEPER_HOSTS``
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from contextlib import AsyncExitStack
from typing import Any, Literal

import trio

from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.dial import dial_tcp
from ledger.digest import DigestType
from ledger.transport_config import TransportConfig
from ledger.write_handle import WriteHandle
from namespace.store import MetadataStore
from namespace.zookeeper import open_zookeeper_store


class OurDriver:
    """The objects that requests name, and the requests."""

    def __init__(self, store: MetadataStore, stack: AsyncExitStack) -> None:
        self._store, self._stack = store, stack
        self._clients: dict[str, LedgerClient] = {}
        self._handles: dict[str, WriteHandle] = {}

    async def answer(self, request: dict[str, Any]) -> Any:
        """Do what is asked; what is returned must be JSON."""
        op = request.pop("op")
        return await getattr(self, f"do_{op}")(**request)

    async def do_ping(self) -> str:
        return "pong"

    async def do_client(self, name: str, root: str, version: Literal[2, 3]) -> bool:
        config = ClientConfig(transport=TransportConfig(add_version=version))
        self._clients[name] = await self._stack.enter_async_context(
            open_ledger_client(self._store, dial_tcp, config, root=root)
        )
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
        """Add ``prefix`` + index, ``in_flight`` at a time; tell what is confirmed as events."""
        writer = self._handles[handle]

        def confirmed(lac: int, error: BaseException | None) -> None:
            if error is None:
                _tell({"event": "acked", "handle": handle, "entry_id": lac})

        writer.on_confirmed(confirmed)
        for index in range(count):
            entry_id = writer.submit(f"{prefix}{index}".encode())
            if entry_id >= in_flight:
                await writer.wait_confirmed(entry_id - in_flight)
        await writer.wait_confirmed(writer.last_pushed)
        return count


def _state(handle: WriteHandle) -> dict[str, Any]:
    return {
        "ledger_id": handle.ledger_id,
        "lac": handle.lac,
        "last_pushed": handle.last_pushed,
        "length": handle.length_bytes,
    }


def _tell(line: dict[str, Any]) -> None:
    # One write each: lines of several tasks stay whole.
    os.write(1, json.dumps(line).encode() + b"\n")


async def _answer(driver: OurDriver, request: dict[str, Any]) -> None:
    request_id = request.pop("id")
    try:
        _tell({"id": request_id, "ok": await driver.answer(request)})
    except Exception as exc:
        described = {
            "class": type(exc).__name__,
            "code": None,
            "message": str(exc),
            "stack": traceback.format_exc(),
        }
        _tell({"id": request_id, "error": described})


async def main(hosts: str) -> None:
    """Answer until stdin ends."""
    async with (
        open_zookeeper_store(hosts) as store,
        AsyncExitStack() as stack,
        trio.open_nursery() as nursery,
    ):
        driver = OurDriver(store, stack)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            nursery.start_soon(_answer, driver, json.loads(line))
        os._exit(0)  # whatever is still open is abandoned


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
