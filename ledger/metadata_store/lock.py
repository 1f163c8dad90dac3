"""A fair lock made of sequential ephemeral nodes: for a log's writer, or for a subscriber's readers.

Inside: member nodes, their order, and waiting for the loss of a held lock.
Not inside: fencing. This lock keeps writers apart. It does not stop a holder that has lost it and does not
know yet: the fence of the ledger and conditional transactions do.
Always: a lock object is acquired at most once and belongs to one session; each waiter watches the first
member and its predecessor, and reads the whole list again when it wakes; a lock object that ends deletes its
member node, unless the store stays out of reach; a member is never held and passed over: both are
transactions that exclude each other.

A waiter that was killed keeps its member until its session ends. So a waiter of ours marks its member, by the
data at its creation, and claims the lock when its turn comes: it writes its member's name into the node of
the lock. A first member that is marked and does not claim for ``CLAIM_S`` is passed over: the waiters behind
delete it. If it lives after all, it takes a new place. Java's members are not marked, and never passed over.
No data of a member is changed, because that would use up the watch of a Java waiter after it.

One difference from Java: a lock object never takes over a member of the same client and session. So two
writers of one process exclude each other, as two processes do.

Source: DistributedLog, ZKSessionLock.java and ZKDistributedLock.java; ZooKeeper recipes.
"""

from __future__ import annotations

import enum
import urllib.parse
import weakref
from collections.abc import Iterable

import attrs
import trio

from ledger.metadata_store.errors import (
    AccessDeniedError,
    BadVersionError,
    ConnectionLostError,
    LockError,
    LockLostError,
    LockTakenError,
    MetadataError,
    NoNodeError,
    SessionExpiredError,
)
from ledger.metadata_store.store import Check, Delete, MetadataStore, Put, SessionState
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

RELEASE_TIMEOUT_S = 30.0
RETRY_S = 0.1
CLAIM_S = 1.0  # a waiter whose turn has come proves within this time that it lives
WAITER_MARK = b" (waits for the lock, dlog)"  # the end of a marked member's data

log = get_logger(__name__)


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


def claimed_member(lock_data: bytes) -> str | None:
    """The member that claimed the lock last, from the data of the lock's node; None if none has."""
    _, separator, member = lock_data.partition(b"\n")
    return member.decode("utf-8", "replace") if separator else None


def with_claim(lock_data: bytes, member: str) -> bytes:
    """The data of the lock's node after a claim. The first line belongs to the creator of the node."""
    return lock_data.partition(b"\n")[0] + b"\n" + member.encode()


@attrs.define(eq=False)
class _Members:
    """The members of one session at one lock path."""

    mutex: trio.Lock = attrs.Factory(trio.Lock)
    names: set[str] = attrs.Factory(set)  # of members that belong to a lock object
    # True after a creation or deletion with an unknown outcome: a member without a lock object may exist. It
    # would block all clients for as long as the session lives. (kazoo, issue 282)
    strays: bool = False


_members: weakref.WeakKeyDictionary[MetadataStore, dict[str, _Members]] = weakref.WeakKeyDictionary()


def _is_of_this_process(path: str, member: str) -> bool:
    """True if a lock object of this process, in any session, has this member."""
    return any(member in of_session[path].names for of_session in _members.values() if path in of_session)


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

    Raises:
        ConnectionLostError: The store has no session now.
    """

    def __init__(self, store: MetadataStore, path: str, client_id: str) -> None:
        self._store = store.current_session()
        self.path = path
        self.client_id = client_id
        self._phase = _Phase.NEW
        self._member: str | None = None
        self._is_marked = False
        self._waiting = trio.CancelScope()
        self._owner, self._is_own = "unknown", False

    def __repr__(self) -> str:
        return f"<DistributedLock {self.path} of {self.client_id!r}, {self._phase.value}>"

    @property
    def session(self) -> MetadataStore:
        """The session that the lock belongs to. A change that must end with the lock uses this store."""
        return self._store

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
            LockLostError: The member node was deleted from outside; only with ``timeout_s=0``. A waiter takes
                a new place.
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
            else:
                await self._create_member(is_marked=bool((await self._store.children(self.path)).names))
            if timeout_s:
                self._waiting.deadline = trio.current_time() + timeout_s
            with self._waiting:
                await self._wait_turn(once=timeout_s == 0)
            if self._in(_Phase.RELEASED):
                raise LockError(self.path, "it was released while it was being acquired")
            if not self._in(_Phase.HELD):
                raise LockTakenError(self.path, self._owner, timeout_s or 0, is_own=self._is_own)
        except BaseException:
            await self._remove()
            raise

    async def wait_lost(self) -> None:
        """Return when the held lock is lost: its session is over, or its node was deleted.

        A suspension that ends in time, or a release by the owner, is no loss. A task that waits for it may
        begin after the release.
        """
        assert not self._in(_Phase.NEW, _Phase.WAITING), self  # the task begins after ``acquire``
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
            owner = await self._name_owner(names[0])
            raise LockTakenError(self.path, owner, 0, is_own=_is_of_this_process(self.path, names[0]))

    async def _create_member(self, *, is_marked: bool = False) -> None:
        siblings = self._siblings
        data = self.client_id.encode("utf-8", "surrogateescape") + (WAITER_MARK if is_marked else b"")
        async with siblings.mutex:
            if self._store.state is SessionState.SUSPENDED:
                raise ConnectionLostError(self.path, "the store is out of reach; the request was not sent")
            if siblings.strays:
                await self._remove_strays(siblings)
            # The name is in the store's reply. Without the reply the member is a stray.
            siblings.strays = True
            path = await self._store.create(
                f"{self.path}/{member_prefix(self.client_id, self._store.session_id)}",
                data,
                ephemeral=True,
                sequential=True,
            )
            siblings.strays = False
            self._member = path.rpartition("/")[2]
            siblings.names.add(self._member)
            self._is_marked = is_marked

    async def _wait_turn(self, *, once: bool) -> None:
        silent: tuple[str, float] | None = None  # the first member, and since when it does not claim
        while True:
            changed = trio.Event()
            try:
                names = in_order((await self._store.children(self.path)).names)
                if self._member not in names:
                    if once:
                        raise LockLostError(
                            self.path,
                            f"member {self._member} was deleted from outside; make a new lock",
                        )
                    await self._take_new_place()
                    continue
                turn = names.index(self._member)
                if turn == 0:
                    if not self._is_marked or await self._claim():
                        if self._in(_Phase.WAITING):  # else ``release`` came first
                            self._phase = _Phase.HELD
                        return
                    continue
                first = names[0]
                self._owner = await self._name_owner(first)
                self._is_own = _is_of_this_process(self.path, first)
                if once:
                    return
                if not self._is_marked:
                    await self._take_new_place()  # two came at once; the second waits
                    continue
                if not await self._watch({first, names[turn - 1]}, changed):
                    continue
                unclaimed_version = await self._unclaimed_version(first, changed)
                if unclaimed_version is None:
                    silent = None
                    await changed.wait()
                    if turn > 1:
                        await self._let_the_next_claim(names[turn - 1])
                    continue
                if silent is None or silent[0] != first:
                    silent = first, trio.current_time()
                with trio.move_on_at(silent[1] + CLAIM_S) as scope:
                    await changed.wait()
                if scope.cancelled_caught:
                    await self._pass_over(first, unclaimed_version)
            except ConnectionLostError:
                if once:
                    raise
                await self._wait_connected()

    async def _watch(self, names: set[str], changed: trio.Event) -> bool:
        """Watch members; False if one of them is gone."""
        for name in sorted(names):  # so that a seed of the simulation decides the order
            if await self._store.exists(f"{self.path}/{name}", watch=changed) is None:
                return False
        return True

    async def _let_the_next_claim(self, predecessor: str) -> None:
        """Return when the predecessor is gone, or the next holder had time to claim the lock.

        So a release does not make all waiters list the members at the same time.
        """
        gone = trio.Event()
        if await self._watch({predecessor}, gone):
            with trio.move_on_after(CLAIM_S):
                await gone.wait()

    async def _take_new_place(self) -> None:
        """Wait at the end of the queue, with a marked member: ours was passed over, or is not marked."""
        siblings = self._siblings
        async with siblings.mutex:
            await self._remove_member(siblings)
        await self._create_member(is_marked=True)

    async def _claim(self) -> bool:
        """Make the first member, which is ours, the holder; False if it was passed over just now."""
        assert self._member is not None  # set by the creation above
        lock = await self._store.get(self.path)
        if claimed_member(lock.value) == self._member:
            return True  # the reply to an earlier claim was lost
        try:
            await self._store.commit(
                [
                    Put(self.path, with_claim(lock.value, self._member), lock.stat.version),
                    Check(f"{self.path}/{self._member}", 0),
                ]
            )
        except (BadVersionError, NoNodeError):
            return False
        return True

    async def _unclaimed_version(self, first: str, changed: trio.Event) -> int | None:
        """The version of the lock's node while the first member does not claim; None if it need not."""
        try:
            member = await self._store.get(f"{self.path}/{first}")
        except NoNodeError:
            changed.set()
            return None
        if not member.value.endswith(WAITER_MARK):
            return None
        lock = await self._store.get(self.path, watch=changed)
        return None if claimed_member(lock.value) == first else lock.stat.version

    async def _pass_over(self, first: str, unclaimed_version: int) -> None:
        """Delete the first member unless it has claimed the lock."""
        log.info(
            "lock %s: member %s does not claim it and is passed over",
            self.path,
            first,
            extra=event("lock.waiter_passed_over", lock=self.path, member=first),
        )
        try:
            await self._store.commit([Check(self.path, unclaimed_version), Delete(f"{self.path}/{first}", 0)])
        except (BadVersionError, NoNodeError):
            pass  # it claimed, or is gone
        except AccessDeniedError:
            await trio.sleep(CLAIM_S)  # its session ends in time

    async def _name_owner(self, name: str) -> str:
        if (owner := member_owner(name)) is not None:
            return owner[0]
        try:
            data = (await self._store.get(f"{self.path}/{name}")).value
            return data.removesuffix(WAITER_MARK).decode("utf-8", "replace")
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
                except MetadataError as exc:
                    log.warning(
                        "lock %s: member %s was not deleted: %s",
                        self.path,
                        self._member,
                        exc,
                        extra=event("lock.member_left", lock=self.path, member=self._member, error=exc),
                    )
                    return
        if scope.cancelled_caught:
            log.warning(
                "lock %s: the store is out of reach; member %s was not deleted",
                self.path,
                self._member,
                extra=event("lock.member_left", lock=self.path, member=self._member),
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
