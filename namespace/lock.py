"""A fair lock made of sequential ephemeral nodes: for a log's writer, or for a subscriber's readers.

Inside: member nodes, their order, and waiting for the loss of a held lock.
Not inside: fencing. This lock keeps writers apart. It does not stop a holder that has lost it and does not
know yet: the fence of the ledger and conditional transactions do.
Always: a lock object is acquired at most once and belongs to one session; each waiter watches only its
predecessor, and reads the whole list again when it wakes; a lock object that ends deletes its member node,
unless the store stays out of reach.

One difference from Java: a lock object never takes over a member of the same client and session. So two
writers of one process exclude each other, as two processes do.

Source: DistributedLog, ZKSessionLock.java and ZKDistributedLock.java; ZooKeeper recipes.
"""

from __future__ import annotations

import enum
import logging
import urllib.parse
import weakref
from collections.abc import Iterable

import attrs
import trio

from namespace.errors import (
    ConnectionLostError,
    LockError,
    LockLostError,
    LockTakenError,
    NamespaceError,
    NoNodeError,
    SessionExpiredError,
)
from namespace.store import MetadataStore, SessionState

RELEASE_TIMEOUT_S = 30.0
RETRY_S = 0.1

log = logging.getLogger(__name__)


def encode_client_id(client_id: str) -> str:
    """The client id in the form that a member's name has: Java's form encoding."""
    return urllib.parse.quote_plus(client_id, safe="*").replace("~", "%7E")


def member_prefix(client_id: str, session_id: int) -> str:
    """A member's name up to the sequence number that the store appends."""
    return f"member_{encode_client_id(client_id)}_s{session_id:10d}_"


def member_sequence(name: str) -> int | None:
    """The number after the last ``_``, which orders members; None if there is none."""
    try:
        return int(name.rpartition("_")[2])
    except ValueError:
        return None


def in_order(names: Iterable[str]) -> list[str]:
    """Members in the order of their sequence numbers; members without a number come last."""

    def key(name: str) -> tuple[bool, int]:
        sequence = member_sequence(name)
        return sequence is None, sequence or 0

    return sorted(names, key=key)


def member_owner(name: str) -> tuple[str, int] | None:
    """Client id and session id from a member's name; None if only the node's data holds them."""
    parts = name.split("_")
    if len(parts) != 4 or not parts[2].startswith("s"):
        return None
    try:
        return urllib.parse.unquote_plus(parts[1]), int(parts[2][1:])
    except ValueError:
        return None


@attrs.define(eq=False)
class _Members:
    """The members of one session at one lock path."""

    mutex: trio.Lock = attrs.Factory(trio.Lock)
    names: set[str] = attrs.Factory(set)  # of members that belong to a lock object
    # True after a creation or deletion with an unknown outcome: a member without a lock object may exist. It
    # would block all clients for as long as the session lives. (kazoo, issue 282)
    strays: bool = False


_members: weakref.WeakKeyDictionary[MetadataStore, dict[str, _Members]] = weakref.WeakKeyDictionary()


class _Phase(enum.Enum):
    NEW = "not yet acquired"
    WAITING = "waiting"
    HELD = "held"
    LOST = "lost"
    RELEASED = "released"


class DistributedLock:
    """One attempt to own a lock, and the ownership if it succeeds.

    Args:
        path: The lock's node; it must exist. Members are its children.
        client_id: Shown to other clients that want the lock; any text.
    """

    def __init__(self, store: MetadataStore, path: str, client_id: str) -> None:
        self._store = store
        self.path = path
        self.client_id = client_id
        self._phase = _Phase.NEW
        self._member: str | None = None
        self._waiting = trio.CancelScope()
        self._owner = "unknown"

    def __repr__(self) -> str:
        return f"<DistributedLock {self.path} of {self.client_id!r}, {self._phase.value}>"

    @property
    def held(self) -> bool:
        """True if the lock is acquired and the session is connected.

        False while the session is suspended, since the lock may be lost already. True again when the session
        continues.
        """
        return self._phase is _Phase.HELD and self._store.state is SessionState.CONNECTED

    async def acquire(self, timeout_s: float | None) -> None:
        """Acquire the lock; possible once for each lock object.

        If this is cancelled or raises, the member node is deleted again.

        Args:
            timeout_s: How long to wait for other holders; 0 tries once, None waits without limit.

        Raises:
            LockTakenError: Another client holds it; the error names the owner.
            LockLostError: The member node was deleted from outside during the wait.
            LockError: Acquired before, or released during the wait.
            NoNodeError: The lock path does not exist.
            ConnectionLostError, SessionExpiredError: From the store.

        Source: DistributedLog, ZKSessionLock.asyncTryLock.
        """
        if self._phase is not _Phase.NEW:
            raise LockError(
                self.path,
                f"it is {self._phase.value}; a lock object can be acquired only once, make a new one",
            )
        self._phase = _Phase.WAITING
        try:
            if timeout_s == 0:
                await self._refuse_if_taken()
            await self._create_member()
            if timeout_s:
                self._waiting.deadline = trio.current_time() + timeout_s
            with self._waiting:
                await self._wait_turn(once=timeout_s == 0)
            if self._in(_Phase.RELEASED):
                raise LockError(self.path, "it was released while it was being acquired")
            if not self._in(_Phase.HELD):
                raise LockTakenError(self.path, self._owner, timeout_s or 0)
        except BaseException:
            await self._remove()
            raise

    async def wait_lost(self) -> None:
        """Return when the held lock is lost: its session is over, or its node was deleted.

        A suspension that ends in time, or a release by the owner, is no loss.
        """
        assert self._in(_Phase.HELD, _Phase.LOST), self
        while self._in(_Phase.HELD):
            gone = trio.Event()
            try:
                if await self._store.exists(f"{self.path}/{self._member}", watch=gone) is None:
                    break
                await gone.wait()
            except SessionExpiredError:
                break
            except ConnectionLostError:
                await self._wait_connected()
        if self._in(_Phase.RELEASED):
            await trio.sleep_forever()
        self._phase = _Phase.LOST

    async def release(self) -> None:
        """Release the lock, or stop waiting for it. Idempotent; never raises.

        Waits at most ``RELEASE_TIMEOUT_S`` for a store that is out of reach, and cannot be cancelled during
        that time.
        """
        self._waiting.cancel()
        await self._remove()

    def _in(self, *phases: _Phase) -> bool:
        return self._phase in phases

    @property
    def _siblings(self) -> _Members:
        return _members.setdefault(self._store, {}).setdefault(self.path, _Members())

    async def _refuse_if_taken(self) -> None:
        names = in_order((await self._store.children(self.path)).names)
        if names and not self._siblings.strays:
            raise LockTakenError(self.path, await self._name_owner(names[0]), 0)

    async def _create_member(self) -> None:
        siblings = self._siblings
        async with siblings.mutex:
            if self._store.state is SessionState.SUSPENDED:
                raise ConnectionLostError(self.path, "the store is out of reach; the request was not sent")
            if siblings.strays:
                await self._remove_strays(siblings)
            # The name is in the store's reply. Without the reply the member is a stray.
            siblings.strays = True
            path = await self._store.create(
                f"{self.path}/{member_prefix(self.client_id, self._store.session_id)}",
                self.client_id.encode("utf-8", "surrogateescape"),
                ephemeral=True,
                sequential=True,
            )
            siblings.strays = False
            self._member = path.rpartition("/")[2]
            siblings.names.add(self._member)

    async def _wait_turn(self, *, once: bool) -> None:
        assert self._member is not None
        while True:
            gone = trio.Event()
            try:
                names = in_order((await self._store.children(self.path)).names)
                if self._member not in names:
                    raise LockLostError(
                        self.path,
                        f"member {self._member} was deleted from outside while it waited; make a new lock",
                    )
                turn = names.index(self._member)
                if turn == 0:
                    if self._in(_Phase.WAITING):  # else ``release`` came first
                        self._phase = _Phase.HELD
                    return
                self._owner = await self._name_owner(names[0])
                if once:
                    return
                if await self._store.exists(f"{self.path}/{names[turn - 1]}", watch=gone) is not None:
                    await gone.wait()
            except ConnectionLostError:
                if once:
                    raise
                await self._wait_connected()

    async def _name_owner(self, name: str) -> str:
        if (owner := member_owner(name)) is not None:
            return owner[0]
        try:
            return (await self._store.get(f"{self.path}/{name}")).value.decode("utf-8", "replace")
        except NoNodeError:
            return "unknown (its member was just deleted)"

    async def _remove(self) -> None:
        """Delete the member node; retry until it is gone or ``RELEASE_TIMEOUT_S`` ends."""
        if self._phase is not _Phase.LOST:
            self._phase = _Phase.RELEASED
        siblings = self._siblings
        with trio.move_on_after(RELEASE_TIMEOUT_S) as scope:
            scope.shield = True
            while self._member is not None or siblings.strays:
                try:
                    async with siblings.mutex:
                        await self._remove_member(siblings)
                        if siblings.strays:
                            await self._remove_strays(siblings)
                except SessionExpiredError:
                    return  # the server has deleted the node with the session
                except ConnectionLostError:
                    await self._wait_connected()
                except NamespaceError as exc:
                    log.warning("lock %s: member %s was not deleted: %s", self.path, self._member, exc)
                    return
        if scope.cancelled_caught:
            log.warning(
                "lock %s: the store is out of reach; member %s was not deleted", self.path, self._member
            )
            siblings.strays = True
            siblings.names.discard(self._member or "")

    async def _remove_member(self, siblings: _Members) -> None:
        if self._member is not None:
            try:
                await self._store.delete(f"{self.path}/{self._member}")
            except NoNodeError:
                pass  # deleted already
            siblings.names.discard(self._member)
            self._member = None

    async def _remove_strays(self, siblings: _Members) -> None:
        assert siblings.mutex.locked()  # no sibling is between creating its member and knowing its name
        session_part = f"s{self._store.session_id:10d}"
        try:
            names = (await self._store.children(self.path)).names
        except NoNodeError:
            names = ()
        for name in names:
            if name not in siblings.names and name.split("_")[-2:-1] == [session_part]:
                try:
                    await self._store.delete(f"{self.path}/{name}")
                except NoNodeError:
                    pass  # deleted already
        siblings.strays = False

    async def _wait_connected(self) -> None:
        if self._store.state is SessionState.SUSPENDED:
            await self._store.wait_state_change(SessionState.SUSPENDED)
        else:
            await trio.sleep(RETRY_S)
