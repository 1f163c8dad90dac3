"""The bookies of a cluster: which are writable, which read-only, which failed recently; their addresses.

Inside: two watched lists of the metadata store, the service info of each bookie, the memory of recent
failures.
Not inside: registering (``bookie.cluster.registration``), choosing (``placer``).
Always: a bookie in both lists counts as read-only, because both nodes exist while it changes its state. A
list that cannot be read keeps its last known value, and is read again until that succeeds.

Source: ZKRegistrationClient.java, DefaultBookieAddressResolver.java; docs/metadata.md 5, 7.2, 7.3;
docs/known-bugs.md 43 (watches lost on SUSPENDED).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import trio

from ledger.catalog.paths import AVAILABLE, READONLY, READONLY_NAME
from ledger.catalog.service_info import ServiceInfo, decode_service_info
from ledger.causes import cause_of
from ledger.errors import BookieSecurityError, BookieUnavailableError, MetadataFormatError
from ledger.metadata_store.errors import MetadataError, NoNodeError, SessionExpiredError
from ledger.metadata_store.store import MetadataStore, SessionState
from ledger.placement.bookie_health import BookieHealth, counts_as_error
from ledger.placement.config import PlacementConfig
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.background import open_background
from ledger.runtime.tasks.failure_domain import report_contained
from ledger.transport.transport import Address

logger = get_logger(__name__)

CONTAINED_PAUSE_S = 60.0  # after an error that nobody expected; it may come again at once
RETRY_PAUSE_S = 0.2


class Membership:
    """The bookies that are registered in the metadata store, and their failures."""

    def __init__(self, store: MetadataStore, root: str, health: BookieHealth | None = None) -> None:
        self._store = store
        self._health = health or BookieHealth(PlacementConfig(), random.Random())
        self._available = f"{root}/{AVAILABLE}"
        self._readonly = f"{root}/{READONLY}"
        self._writable_seen: frozenset[str] = frozenset()
        self._readonly_seen: frozenset[str] = frozenset()
        self._changed = trio.Event()

    def __repr__(self) -> str:
        return f"<Membership {len(self.writable)} writable, {len(self.readonly)} read-only>"

    @property
    def writable(self) -> frozenset[str]:
        """Writable bookies."""
        return self._writable_seen - self._readonly_seen

    @property
    def readonly(self) -> frozenset[str]:
        """Read-only bookies."""
        return self._readonly_seen

    @property
    def suspects(self) -> Collection[str]:
        """Bookies that failed this client within the last minute."""
        return self._health.suspects(trio.current_time())

    @property
    def refusing(self) -> Collection[str]:
        """Bookies that refused this client, or were refused by it, within the last minute."""
        return self._health.refusing(trio.current_time())

    @property
    def slow(self) -> Collection[str]:
        """Bookies that were slow to reply to this client within the last minute."""
        return self._health.slow(trio.current_time())

    @property
    def quarantined(self) -> Collection[str]:
        """Bookies that failed this client so often that it chooses them only if there are too few others."""
        return self._health.quarantined(trio.current_time())

    def report_failure(self, bookie: str) -> None:
        """Remember a failed request to the bookie."""
        self._health.report_failure(bookie, trio.current_time())

    def report_slow(self, bookie: str) -> None:
        """Remember that another replica replied before this bookie."""
        self._health.report_slow(bookie, trio.current_time())

    def report_errors(self, bookie: str, count: int, cause: Exception) -> None:
        """Count failed requests to the bookie; too many in an interval quarantine it. Remember a refusal."""
        if isinstance(cause, BookieSecurityError):
            self._health.report_refusal(bookie, trio.current_time())
        if counts_as_error(cause) and self._health.report_errors(bookie, count, trio.current_time()):
            logger.warning(
                "bookie %s is quarantined because of many errors, the last one: %s",
                bookie,
                cause,
                extra=event("bookie.quarantined", bookie=bookie, error=cause),
            )

    async def wait_change(self) -> None:
        """Return when one of the lists changes after the call."""
        await self._changed.wait()

    async def wait_writable(self, count: int, steady_s: float) -> None:
        """Return once at least this many bookies have been writable for this long without a break."""
        while True:
            while len(self.writable) < count:
                await self.wait_change()
            with trio.move_on_after(steady_s) as scope:
                while len(self.writable) >= count:
                    await self.wait_change()
            if scope.cancelled_caught:
                return

    async def resolve(self, bookie: str) -> Address:
        """The address of the bookie: from its service info, or else its id as ``host:port``.

        Raises:
            BookieUnavailableError: It is not registered and its id is no ``host:port``; or the store cannot
                be read.
        """
        address = _parse_address(bookie)
        try:
            info = await self.service_info(bookie)
        except BookieUnavailableError as exc:
            if address is not None and isinstance(cause_of(exc), MetadataError):
                return address  # most ids are addresses: reads continue without the store
            raise
        if info.rpc is not None:
            return Address(info.rpc.host, info.rpc.port)
        if info.endpoints:
            raise BookieUnavailableError(bookie, "its service info names no endpoint for entries")
        if address is None:
            raise BookieUnavailableError(bookie, "not registered, and its id is no host:port")
        return address

    async def service_info(self, bookie: str) -> ServiceInfo:
        """The service info of the bookie; an empty one if it is not registered or announces none.

        Raises:
            BookieUnavailableError: It does not parse, or the store cannot be read.
        """
        for parent in (self._available, self._readonly):
            try:
                node = await self._store.get(f"{parent}/{bookie}")
            except NoNodeError:
                continue
            except MetadataError as exc:
                raise BookieUnavailableError(bookie, f"its address cannot be looked up: {exc}") from None
            try:
                return decode_service_info(node.value)
            except MetadataFormatError as exc:
                raise BookieUnavailableError(bookie, f"its service info does not parse: {exc}") from None
        return ServiceInfo()

    async def _refresh(self) -> trio.Event:
        """Read both lists; return the event that is set when they must be read again."""
        watch = trio.Event()
        writable = await self._children(self._available, watch)
        readonly = await self._children(self._readonly, watch)
        writable -= {READONLY_NAME}
        if (writable, readonly) != (self._writable_seen, self._readonly_seen):
            self._writable_seen, self._readonly_seen = writable, readonly
            self._changed.set()
            self._changed = trio.Event()
        return watch

    async def _children(self, path: str, watch: trio.Event) -> frozenset[str]:
        while True:
            try:
                return frozenset((await self._store.children(path, watch=watch)).names)
            except NoNodeError:
                # Without the node there is no watch. Watch for its creation; if it exists by now, read again.
                if await self._store.exists(path, watch=watch) is None:
                    return frozenset()

    async def _follow(self, watch: trio.Event) -> None:
        while True:
            await watch.wait()
            while True:
                try:
                    watch = await self._refresh()
                    break
                except SessionExpiredError:
                    logger.warning(
                        "%r: the metadata session has expired; the lists are not updated any more",
                        self,
                        extra=event("bookies.unknown"),
                    )
                    return
                except MetadataError as exc:
                    if self._store.state in (SessionState.EXPIRED, SessionState.CLOSED):
                        return
                    logger.info(
                        "%r: reading the lists of bookies again: %s",
                        self,
                        exc,
                        extra=event("bookies.list_failed", error=exc),
                    )
                    await trio.sleep(RETRY_PAUSE_S)
                except Exception as exc:
                    report_contained("watch of the bookies", exc)
                    await trio.sleep(CONTAINED_PAUSE_S)


@asynccontextmanager
async def open_membership(
    store: MetadataStore, root: str, *, health: BookieHealth | None = None
) -> AsyncIterator[Membership]:
    """Read the lists once, then keep them up to date until the end of the block.

    Args:
        health: The memory of failures; None for an empty one with default settings.

    Raises:
        ledger.metadata_store.errors.ConnectionLostError: The store is unreachable.
    """
    membership = Membership(store, root, health)
    watch = await membership._refresh()
    async with open_background() as nursery:
        nursery.start_soon(membership._follow, watch)
        yield membership


def _parse_address(bookie: str) -> Address | None:
    host, _, port = bookie.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65_536:
        return None
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
