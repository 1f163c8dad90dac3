"""Both clients for tests: ours on the test's loop or in a process, Apache's in a driver.

Inside: opening clients on a cluster, handles of other processes, shared payloads. Not inside: expectations
(``test_*.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Literal

import attrs

from ledger.client import LedgerClient, open_ledger_client
from ledger.config import ClientConfig
from ledger.digest import DigestType
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.transport.config import TransportConfig
from ledger.transport.dial import dial_tcp
from tests.interop.driver import Driver
from tests.interop.originals import Cluster

PASSWORD = b"secret"
TEST_TIMEOUT_S = 180

# Apache's client codes that tests expect by name.
WRITE_ERROR = -12
NO_SUCH_ENTRY = -13
DUPLICATE_ENTRY = -22
NO_SUCH_LEDGER = -25
FENCED = -101
UNAUTHORIZED = -102
LEDGER_CLOSED = -11
READ_ERROR = -1
UNAVAILABLE = -8


@asynccontextmanager
async def our_client(cluster: Cluster, version: Literal[2, 3] = 2) -> AsyncIterator[LedgerClient]:
    """Our client on a cluster; it adds and reads in one version of the protocol."""
    config = ClientConfig(transport=TransportConfig(add_version=version))
    async with (
        open_zookeeper_store(cluster.originals.zookeeper_hosts) as store,
        open_ledger_client(store, dial_tcp, config, root=cluster.root) as client,
    ):
        yield client


async def java_client(
    driver: Driver, cluster: Cluster, version: Literal[2, 3] = 3, **settings: object
) -> RemoteClient:
    """Apache's client on a cluster, in one of its two modes. ``settings``: keys of its configuration.

    Clients live as long as their driver, since Apache's code takes seconds to open and close one.
    """
    keys = {"useV2WireProtocol": str(version == 2).lower(), **{k: str(v) for k, v in settings.items()}}
    name = f"client of {cluster.uri} with {sorted(keys.items())}"
    if name not in driver.made:
        await driver.call("client", name=name, uri=cluster.uri, settings=keys)
        driver.made.add(name)
    return RemoteClient(driver, name)


async def our_writing_client(writer: Driver, cluster: Cluster, version: Literal[2, 3] = 2) -> RemoteClient:
    """Our client in a driver process (``Originals.start_our_driver``), for writing."""
    name = writer.name("client")
    await writer.call("client", name=name, root=cluster.root, version=version)
    return RemoteClient(writer, name)


class RemoteClient:
    """Apache's ``BookKeeper`` object, or our client, in another process. Its errors are ``DriverError``."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver, self.name = driver, name

    async def create(
        self,
        sizes: Sequence[int] = (3, 3, 2),
        *,
        digest: DigestType = DigestType.CRC32C,
        password: bytes = PASSWORD,
        **more: Any,
    ) -> RemoteLedger:
        """Create a ledger and return its writer. ``more``: custom, ledger_id, adv, deferred_sync."""
        handle = self.driver.name("writer")
        state = await self.driver.call(
            "create",
            client=self.name,
            handle=handle,
            sizes=list(sizes),
            digest=digest.name,
            password=password.hex(),
            **more,
        )
        return RemoteLedger(self.driver, handle, state["ledger_id"], state)

    async def open(
        self,
        ledger_id: int,
        *,
        recover: bool = True,
        password: bytes = PASSWORD,
        digest: DigestType = DigestType.CRC32C,
        timeout_s: float = TEST_TIMEOUT_S,
    ) -> RemoteLedger:
        """Open a ledger for reading."""
        handle = self.driver.name("reader")
        state = await self.driver.call(
            "open",
            client=self.name,
            handle=handle,
            ledger_id=ledger_id,
            recover=recover,
            password=password.hex(),
            digest=digest.name,
            timeout_s=timeout_s,
        )
        return RemoteLedger(self.driver, handle, ledger_id, state)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger."""
        await self.driver.call("delete", client=self.name, ledger_id=ledger_id)

    async def metadata(self, ledger_id: int) -> dict[str, Any]:
        """A ledger's metadata as Apache's code parses them."""
        found: dict[str, Any] = await self.driver.call("metadata", client=self.name, ledger_id=ledger_id)
        return found

    async def ask(self, op: str, **arguments: Any) -> Any:
        """Send a request that needs the client only."""
        return await self.driver.call(op, client=self.name, **arguments)


@attrs.define
class RemoteLedger:
    """A ledger handle of a ``RemoteClient``."""

    driver: Driver
    handle: str
    ledger_id: int
    opened: dict[str, Any]  # the handle's state at the moment of its creation

    @property
    def lac(self) -> int:
        """The LAC at the moment of the handle's creation."""
        lac: int = self.opened["lac"]
        return lac

    async def ask(self, op: str, *, timeout_s: float = TEST_TIMEOUT_S, **arguments: Any) -> Any:
        """Send a request that needs the handle."""
        return await self.driver.call(op, handle=self.handle, timeout_s=timeout_s, **arguments)

    def begin(self, op: str, **arguments: Any) -> Future[Any]:
        """As ``ask``, without waiting; ``driver.wait`` waits for the reply."""
        return self.driver.begin(op, handle=self.handle, **arguments)

    async def add(self, payload: bytes) -> int:
        """Add one entry; return its id once it is acknowledged."""
        entry_id: int = await self.ask("add", payload=payload.hex())
        return entry_id

    async def add_many(self, payloads: Sequence[bytes]) -> list[int]:
        """Add several entries, pipelined; return their ids once all are acknowledged."""
        ids: list[int] = await self.ask("add_many", payloads=[payload.hex() for payload in payloads])
        return ids

    async def read(self, first: int, last: int, *, unconfirmed: bool = False) -> list[bytes]:
        """Read payloads, and check the ids and cumulative lengths of their entries."""
        return payloads_of(await self.ask("read", first=first, last=last, unconfirmed=unconfirmed), first)

    async def state(self) -> dict[str, Any]:
        """The state of the handle."""
        state: dict[str, Any] = await self.ask("state")
        return state

    async def close(self) -> dict[str, Any]:
        """Close the ledger; return the state of the handle."""
        state: dict[str, Any] = await self.ask("close")
        return state


def payloads_of(entries: Sequence[dict[str, Any]], first: int) -> list[bytes]:
    """The payloads of entries from a driver's reply; the entries must be consecutive from ``first`` on."""
    assert [entry["id"] for entry in entries] == list(range(first, first + len(entries)))
    payloads = [bytes.fromhex(entry["payload"]) for entry in entries]
    for index in range(1, len(entries)):
        assert entries[index]["length"] == entries[index - 1]["length"] + len(payloads[index])
    return payloads


def some_payloads(count: int, *, salt: str = "") -> list[bytes]:
    """Payloads of various contents and sizes: empty, short, and one larger than a socket buffer."""
    sizes = [0, 1, 17, 1024, 4096]
    payloads = [(f"{salt}{index}:".encode() * 5000)[: sizes[index % len(sizes)]] for index in range(count)]
    if count > 2:
        payloads[2] = (bytes((7 * i + 3) % 256 for i in range(256)) * 1172)[:300_000]
    return payloads
