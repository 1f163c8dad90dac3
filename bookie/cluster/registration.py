"""Announcing a bookie in the metadata store, and withdrawing it.

Inside: the two nodes of a bookie (writable, read-only) and their order, waiting for the node of an earlier
process, announcing again after a lost session. Not inside: cookies; when to become read-only (``fullness``).
Always: from its first announcement until it is withdrawn or its session ends, the bookie has at least one of
the two nodes. The nodes belong to its own session, so they vanish when the bookie does.

Source: ZKRegistrationManager.java, BookieStateManager.java; docs/metadata.md 7.1.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import trio

from bookie.errors import RegistrationError
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.catalog.paths import READONLY, available_path, readonly_path
from ledger.metadata_store.errors import (
    MetadataError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from ledger.metadata_store.store import MetadataStore, SessionState
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import failure_domain, report_contained

OpenStore = Callable[[], AbstractAsyncContextManager[MetadataStore]]
_RETRY_S = 1.0
_EXPIRY_MARGIN_S = 2.0  # a server notices the end of a session at its next tick

log = get_logger(__name__)


class Registration:
    """The announcement of one bookie, over all its sessions."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookie_id: str,
        service_info: bytes,
        *,
        wait_s: float = 10.0,
        reopen_s: float = 60.0,
    ) -> None:
        """The constructor announces nothing.

        Args:
            service_info: The data of the nodes; see ``ledger.catalog.service_info``.
            wait_s: How long to wait for the end of an earlier session's node: the timeout of that session.
            reopen_s: How long to try to replace an expired session.
        """
        self._store = store
        self._writable_path = available_path(root, bookie_id)
        self._readonly_path = readonly_path(root, bookie_id)
        self._readonly_parent = f"{root}/{READONLY}"
        self._bookie_id = bookie_id
        self._service_info = service_info
        self._wait_s = wait_s
        self._reopen_s = reopen_s
        self._is_read_only = False
        self._changing = trio.Lock()

    def __repr__(self) -> str:
        state = "read-only" if self._is_read_only else "writable"
        return f"<bookie.Registration of {self._bookie_id}, {state}>"

    @property
    def store(self) -> MetadataStore:
        """The current session."""
        return self._store

    async def announce(self, *, read_only: bool) -> None:
        """Announce the bookie for the first time.

        Raises:
            RegistrationError: Another session holds the node and does not end.
            ConnectionLostError: The store stayed out of reach for ``reopen_s``.
        """
        async with self._changing:
            self._is_read_only = read_only
            await retry_lost_connection(self._announce, timeout_s=self._reopen_s)

    async def become_read_only(self) -> None:
        """Create the read-only node, then remove the other: without any node the bookie would look dead."""
        async with self._changing:
            self._is_read_only = True
            await self._announce()
            await self._remove(self._writable_path)
        log.warning("bookie %s is read-only now", self._bookie_id)

    async def become_writable(self) -> None:
        """Create the writable node, then remove the other."""
        async with self._changing:
            self._is_read_only = False
            await self._announce()
            await self._remove(self._readonly_path)
        log.info("bookie %s takes writes again", self._bookie_id)

    async def withdraw(self) -> None:
        """Remove the nodes, so that clients need not wait for the end of the session. Logs a failure."""
        try:
            async with self._changing:
                await self._remove(self._writable_path)
                await self._remove(self._readonly_path)
        except MetadataError as exc:
            log.warning("bookie %s could not be withdrawn: %s", self._bookie_id, exc)

    async def keep(self, open_store: OpenStore) -> None:
        """Replace each expired session with a new one, and announce the bookie in it; never returns.

        Raises:
            RegistrationError: There was no new session, or no node in it, within ``reopen_s``.
        """
        async with AsyncExitStack() as stores:
            while True:
                try:
                    await self._wait_expired()
                except Exception as exc:
                    report_contained("watch of the session", exc)
                    await trio.sleep(_RETRY_S)
                    continue
                log.warning("bookie %s: its session expired; announcing it in a new one", self._bookie_id)
                with failure_domain("closing an expired session"):
                    await stores.aclose()
                await self._reopen(open_store, stores)

    async def _wait_expired(self) -> None:
        state = self._store.state
        while state is not SessionState.EXPIRED:
            if state is SessionState.SUSPENDED:
                log.warning("bookie %s: the metadata store is unreachable", self._bookie_id)
            state = await self._store.wait_state_change(state)

    async def _reopen(self, open_store: OpenStore, stores: AsyncExitStack) -> None:
        deadline = trio.current_time() + self._reopen_s
        while True:
            try:
                async with self._changing:
                    self._store = await stores.enter_async_context(open_store())
                    await self._announce()
            except Exception as exc:  # of any class: there is an end to the attempts, and it has a name
                if trio.current_time() >= deadline:
                    raise RegistrationError(
                        f"bookie {self._bookie_id}: its session expired and it could not be announced again"
                        f" within {self._reopen_s:g} s: {exc}"
                    ) from exc
                with failure_domain("closing an expired session"):
                    await stores.aclose()
                await trio.sleep(_RETRY_S)
            else:
                return

    async def _announce(self) -> None:
        if not self._is_read_only:
            await self._create(self._writable_path)
            return
        try:
            await self._store.create(self._readonly_parent, parents=True)
        except NodeExistsError:
            pass
        await self._create(self._readonly_path)

    async def _create(self, path: str) -> None:
        with trio.move_on_after(self._wait_s + _EXPIRY_MARGIN_S):
            while True:
                gone = trio.Event()
                stat = await self._store.exists(path, watch=gone)
                if stat is None:
                    try:
                        await self._store.create(path, self._service_info, ephemeral=True, parents=True)
                    except NodeExistsError:
                        continue  # another session created it just now; check whether it is ours
                    return
                if stat.ephemeral_owner == self._store.session_id:
                    return
                log.info("%s still belongs to session %#x; waiting for its end", path, stat.ephemeral_owner)
                await gone.wait()
        raise RegistrationError(
            f"node {path} belongs to another session and did not vanish within {self._wait_s:g} s: another"
            " bookie with this id is running. Stop it, or give this one another bookieId"
        )

    async def _remove(self, path: str) -> None:
        try:
            stat = await self._store.exists(path)
            if stat is not None and stat.ephemeral_owner == self._store.session_id:
                await self._store.delete(path)
        except (NoNodeError, SessionExpiredError):
            pass  # it does not exist, or ends with the session
