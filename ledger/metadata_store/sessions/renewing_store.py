"""A metadata store that opens another session when one has expired.

Inside: replacing the session, and the error of a call that has none. Not inside: opening one (the caller's
function), locks.
Always: an expired session looks like a suspended one until the next is open, so callers that wait for a store
out of reach wait here, too; a call goes to one session, and is never repeated in the next; the next session
is used only once it shows everything that was written before it, so a caller sees no older state than before;
if another store is in the place of the former one, the state is EXPIRED for good.

What belongs to one session, such as an ephemeral node or a lock, uses ``current_session``: its calls fail
once that session is over.

Source: ZooKeeperClient.java and ZooKeeperWatcherBase.java open another client when a session has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager

import trio

from ledger.metadata_store.errors import (
    ConnectionLostError,
    MetadataError,
    SessionExpiredError,
    StoreReplacedError,
)
from ledger.metadata_store.store import (
    ANY_VERSION,
    Children,
    MetadataStore,
    Node,
    Operation,
    SessionState,
    Stat,
)
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

RETRY_PAUSE_S = 0.2  # after a session that could not be opened

OpenSession = Callable[[], AbstractAsyncContextManager[MetadataStore]]

logger = get_logger(__name__)


class RenewingStore(MetadataStore):
    """A store whose sessions are replaced by ``keep``, which runs in a task.

    Every call raises ``ConnectionLostError`` while no session is open, and ``SessionExpiredError`` only after
    ``aclose`` or if the store was replaced. The watches of a session that expires fire.
    """

    def __init__(self, first: MetadataStore, open_session: OpenSession) -> None:
        self._session, self._open_session = first, open_session
        self._renewed = trio.Event()
        self._is_closed = False
        self._failure: MetadataError | None = None  # why there is no new session yet
        self._replaced: StoreReplacedError | None = None  # why there will be none

    def __repr__(self) -> str:
        return f"<RenewingStore of {self._session!r}>"

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def state(self) -> SessionState:
        if self._is_closed:
            return SessionState.CLOSED
        if self._replaced is not None:
            return SessionState.EXPIRED
        state = self._session.state
        return SessionState.SUSPENDED if state is SessionState.EXPIRED else state

    @property
    def replaced(self) -> StoreReplacedError | None:
        return self._replaced

    async def wait_state_change(self, seen: SessionState) -> SessionState:
        while (state := self.state) is seen:
            within = self._session.state
            if within in (SessionState.EXPIRED, SessionState.CLOSED):
                await self._renewed.wait()
            else:
                await self._session.wait_state_change(within)
        return state

    def current_session(self) -> MetadataStore:
        self._check("/")
        return self._session

    def end(self, replaced: StoreReplacedError) -> None:
        """Open no other session: the store of this one is gone. The first reason stays."""
        self._replaced = self._replaced or replaced
        self._wake()

    async def keep(self) -> None:
        """Open another session each time one has expired; for a task, which ends by its cancellation.

        It also ends if the store was replaced.
        """
        async with AsyncExitStack() as opened:
            while True:
                while (within := self._session.state) is not SessionState.EXPIRED:
                    await self._session.wait_state_change(within)
                logger.warning(
                    "the session with the metadata store expired; opening another one",
                    extra=event("session.expired"),
                )
                await opened.aclose()
                try:
                    self._session = await self._reopened(opened)
                except StoreReplacedError as exc:
                    logger.error(
                        "no other session with the metadata store can be opened: %s",
                        exc,
                        extra=event("session.store_replaced", error=exc),
                    )
                    self.end(exc)
                    return
                self._failure = None
                logger.warning(
                    "another session with the metadata store is open", extra=event("session.renewed")
                )
                self._wake()

    async def _reopened(self, opened: AsyncExitStack) -> MetadataStore:
        replaced = self._replaced or self._session.replaced
        if replaced is not None:
            raise replaced
        while True:
            try:
                session = await opened.enter_async_context(self._open_session())
                # The server of this session may lag behind the one of the session before.
                await session.sync("/")
            except StoreReplacedError:
                raise
            except MetadataError as exc:
                self._failure = exc
                logger.info(
                    "%r: no new session yet: %s", self, exc, extra=event("session.renewal_failed", error=exc)
                )
                await opened.aclose()
            else:
                return session
            await trio.sleep(RETRY_PAUSE_S)

    def _wake(self) -> None:
        self._renewed.set()
        self._renewed = trio.Event()

    def _over(self, path: str) -> SessionExpiredError | None:
        """The error of a call if there will be no session any more; it says why."""
        if self._is_closed:
            return SessionExpiredError(path, "this client has closed the session")
        if self._replaced is not None:
            return SessionExpiredError(path, f"the session expired, and {self._replaced}")
        return None

    def _check(self, path: str) -> None:
        """Raise the error of a call unless there is a session."""
        if (over := self._over(path)) is not None:
            raise over
        if self._session.state is SessionState.EXPIRED:
            because = "" if self._failure is None else f" ({self._failure})"
            raise ConnectionLostError(
                path, f"the session expired and no other is open yet{because}; the request was not sent"
            )

    @contextmanager
    def _calling(self, path: str) -> Iterator[MetadataStore]:
        self._check(path)
        try:
            yield self._session
        except SessionExpiredError as exc:
            if self._session.replaced is not None:
                self.end(self._session.replaced)
            if (over := self._over(path)) is not None:
                raise over from None
            raise ConnectionLostError(
                path, "the session expired during the request; a write may be applied"
            ) from exc

    async def get(self, path: str, *, watch: trio.Event | None = None) -> Node:
        with self._calling(path) as session:
            return await session.get(path, watch=watch)

    async def get_many(self, paths: Sequence[str]) -> dict[str, Node | None]:
        with self._calling(paths[0] if paths else "/") as session:
            return await session.get_many(paths)

    async def read_tree(self, path: str) -> dict[str, Node] | None:
        with self._calling(path) as session:
            return await session.read_tree(path)

    async def exists(self, path: str, *, watch: trio.Event | None = None) -> Stat | None:
        with self._calling(path) as session:
            return await session.exists(path, watch=watch)

    async def children(self, path: str, *, watch: trio.Event | None = None) -> Children:
        with self._calling(path) as session:
            return await session.children(path, watch=watch)

    async def create(
        self,
        path: str,
        value: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> str:
        with self._calling(path) as session:
            return await session.create(
                path, value, ephemeral=ephemeral, sequential=sequential, parents=parents
            )

    async def put(self, path: str, value: bytes, *, expected: int = ANY_VERSION) -> Stat:
        with self._calling(path) as session:
            return await session.put(path, value, expected=expected)

    async def delete(self, path: str, *, expected: int = ANY_VERSION) -> None:
        with self._calling(path) as session:
            await session.delete(path, expected=expected)

    async def commit(self, operations: Sequence[Operation]) -> None:
        with self._calling(operations[0].path if operations else "/") as session:
            await session.commit(operations)

    async def draw_sequential(self, path: str) -> str:
        with self._calling(path) as session:
            return await session.draw_sequential(path)

    async def sync(self, path: str) -> None:
        with self._calling(path) as session:
            await session.sync(path)

    async def last_change(self) -> int:
        with self._calling("/") as session:
            return await session.last_change()

    async def aclose(self) -> None:
        self._is_closed = True
        self._wake()
        await self._session.aclose()
