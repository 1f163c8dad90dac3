"""The marks of under-replicated ledgers, and the locks of the workers that restore them.

Inside: marking, listing, taking a mark under its lock, completing and releasing it; the switch, the delay and
the time of the last check. Not inside: which ledgers are marked (``auditor``), the work (``worker``).
Always: a mark is deleted only at the version that was read before its lock was taken, so a mark that another
program changed during the work survives; a mark that names all lost bookies already is not written again; a
lock belongs to one session and one object, so that a process never takes it twice.

Source: ZkLedgerUnderreplicationManager.java; docs/metadata.md 12.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing

import attrs
import trio

from ledger.catalog.paths import (
    CHECK_ALL_LEDGERS_CTIME,
    LOST_BOOKIE_RECOVERY_DELAY,
    PLACEMENT_POLICY_CHECK_CTIME,
    REPLICAS_CHECK_CTIME,
    UNDERREPLICATION_DISABLE,
    UNDERREPLICATION_LAYOUT,
    UNDERREPLICATION_LEDGERS,
    UNDERREPLICATION_LOCKS,
    underreplicated_id_of,
    underreplicated_lock_path,
    underreplicated_path,
)
from ledger.catalog.replication_nodes import (
    REREPLICATION_LAYOUT,
    Mark,
    check_layout,
    decode_check_time,
    decode_delay,
    decode_mark,
    encode_check_time,
    encode_delay,
    encode_lock,
)
from ledger.catalog.under_replicated import mark_under_replicated
from ledger.errors import MetadataFormatError
from ledger.metadata_store.errors import (
    BadVersionError,
    ConnectionLostError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from ledger.metadata_store.store import MetadataStore, parent_of
from ledger.runtime.clock import wall_ms
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

logger = get_logger(__name__)

_LEVELS = 4  # of inner nodes between ``ledgers`` and a mark
RELEASE_PAUSE_S = 0.5
RELEASE_TIMEOUT_S = 30.0
RELEASE_CANCELLED_TIMEOUT_S = 2.0  # the program stops, and its locks end with its session


class RegularCheck(enum.Enum):
    """A check of all ledgers at intervals. The value is the node with the time of the last one."""

    READS = CHECK_ALL_LEDGERS_CTIME
    PLACEMENT = PLACEMENT_POLICY_CHECK_CTIME
    REPLICAS = REPLICAS_CHECK_CTIME


@attrs.frozen
class MarkedLedger:
    """A ledger with its mark."""

    ledger_id: int
    mark: Mark


@attrs.frozen
class SeenMark:
    """A mark as it was read, before its ledger is taken."""

    ledger_id: int
    version: int
    replicas: tuple[str, ...]  # bookies that lost the ledger; empty: not known


@attrs.frozen
class TakenLedger:
    """A ledger that this object holds the lock of."""

    ledger_id: int
    mark_version: int | None  # seen before the lock was taken; None: the lock was taken without a mark
    replicas: tuple[str, ...] = attrs.field(default=(), eq=False)  # bookies that the mark names


@attrs.frozen
class RecoveryDelay:
    """The delay of the cluster. Each write has another version, also one of the same value."""

    seconds: int
    version: int | None  # None: never set


class UnderReplicatedLedgers:
    """The under-replication tree of one cluster, seen by one session.

    Each call raises what the session raises; see ``MetadataStore``. Calls that only read may be repeated, and
    so may ``mark``, ``complete`` and ``release``: they recognise their own earlier success.
    """

    def __init__(
        self,
        session: MetadataStore,
        root: str,
        *,
        host_name: str = "",
        rng: random.Random | None = None,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """``host_name`` is written into locks, for operators."""
        self._session, self._root = session, root
        self._host_name, self._wall_ms = host_name, wall_ms
        self._rng = rng or random.Random()
        self._held: set[int] = set()
        # Locks of this session that no caller holds: the reply to a creation or deletion was lost.
        self._strays: set[int] = set()
        self._take_watch: trio.Event | None = None

    def __repr__(self) -> str:
        return f"<UnderReplicatedLedgers of {self._root}, {len(self._held)} locks>"

    async def prepare(self) -> None:
        """Create the nodes of the tree that are missing.

        Raises:
            MetadataFormatError: The tree has a layout that this program does not know.
        """
        await self._ensure(UNDERREPLICATION_LAYOUT, REREPLICATION_LAYOUT)
        layout = self._path(UNDERREPLICATION_LAYOUT)
        try:
            check_layout((await self._session.get(layout)).value)
        except MetadataFormatError as exc:
            raise MetadataFormatError(f"{layout}: {exc}") from None
        for name in (UNDERREPLICATION_LEDGERS, UNDERREPLICATION_LOCKS):
            await self._ensure(name, b"")

    async def wait_reachable(self) -> None:
        """Wait while the metadata store is known to be out of reach."""
        await self._session.wait_reachable()

    # --- marks ----------------------------------------------------------------------------------------------

    async def mark(self, ledger_id: int, bookies: Collection[str]) -> None:
        """Mark a ledger: these bookies lost their replicas. If cancelled, it may or may not be marked.

        Raises:
            MetadataFormatError: The ledger has a mark that does not parse.
        """
        await mark_under_replicated(self._session, self._root, ledger_id, bookies, self._wall_ms)

    async def get(self, ledger_id: int) -> Mark | None:
        """The mark of a ledger; None if it has none."""
        path = underreplicated_path(self._root, ledger_id)
        try:
            return decode_mark((await self._session.get(path)).value)
        except NoNodeError:
            return None
        except MetadataFormatError as exc:
            raise MetadataFormatError(f"{path}: {exc}") from None

    async def marked(self) -> list[MarkedLedger]:
        """All marked ledgers, by id. Marks that come or go meanwhile may or may not be among them.

        A mark that does not parse is a mark without bookies: workers look at the whole ledger.
        """
        found = []
        async with aclosing(self.marked_ids()) as ledger_ids:
            async for ledger_id in ledger_ids:
                try:
                    mark = await self.get(ledger_id)
                except MetadataFormatError as exc:
                    mark = Mark(())
                    logger.error("%s", exc, extra=event("mark.unknown", ledger=ledger_id, error=exc))
                if mark is not None:
                    found.append(MarkedLedger(ledger_id, mark))
        return sorted(found, key=lambda each: each.ledger_id)

    async def marked_ids(self) -> AsyncGenerator[int, None]:
        """The ids of marked ledgers, ascending, without holding all of them in memory.

        A caller that stops before the end wraps the iterator in ``contextlib.aclosing``.
        """
        top = self._path(UNDERREPLICATION_LEDGERS)
        await self._session.sync(top)
        todo = [(top, 0)]
        while todo:
            path, depth = todo.pop()
            names = await self._names(path)
            if depth < _LEVELS:
                todo += [(f"{path}/{name}", depth + 1) for name in sorted(names, reverse=True)]
                continue
            found = [ledger_id for ledger_id in map(underreplicated_id_of, names) if ledger_id is not None]
            for ledger_id in sorted(found):
                yield ledger_id

    # --- locks ----------------------------------------------------------------------------------------------

    async def take(self, watch: trio.Event | None = None) -> TakenLedger | None:
        """Take any marked ledger that nobody works on, under its lock; None if there is none.

        If cancelled, a lock may be left; the next call takes it over.

        Args:
            watch: Set when there may be another ledger to take, if the result is None.
        """
        for ledger_id in await self.untaken(watch):
            if (seen := await self.seen(ledger_id)) and (taken := await self.take_seen(seen)):
                return taken
        return None

    async def untaken(self, watch: trio.Event | None = None) -> list[int]:
        """The marked ledgers that nobody worked on a moment ago, in no order: workers do not meet.

        Args:
            watch: Set when there may be another one.
        """
        self._take_watch = watch
        locked = set(await self._names(self._path(UNDERREPLICATION_LOCKS), watch))
        level = [self._path(UNDERREPLICATION_LEDGERS)]
        for _ in range(_LEVELS):
            level = [f"{path}/{name}" for path in level for name in await self._names(path, watch)]
        found: list[int] = []
        for path in level:
            for name in await self._names(path, watch):
                ledger_id = underreplicated_id_of(name)
                if ledger_id is not None and (name not in locked or ledger_id in self._strays):
                    found.append(ledger_id)
        self._rng.shuffle(found)
        return found

    async def seen(self, ledger_id: int) -> SeenMark | None:
        """The mark of a ledger with its version; None if it has none."""
        try:
            node = await self._session.get(underreplicated_path(self._root, ledger_id))
        except NoNodeError:
            return None
        try:
            replicas = decode_mark(node.value).replicas
        except MetadataFormatError:
            replicas = ()  # the worker looks at the whole ledger
        return SeenMark(ledger_id, node.stat.version, replicas)

    async def take_seen(self, seen: SeenMark) -> TakenLedger | None:
        """Take a ledger under its lock; None if another program has it.

        If cancelled, a lock may be left; the next call takes it over.
        """
        if not await self._lock(seen.ledger_id):
            return None
        return TakenLedger(seen.ledger_id, seen.version, seen.replicas)

    async def take_unmarked(self, ledger_id: int) -> TakenLedger | None:
        """Take the lock of a ledger whether or not it is marked; None if another program holds it."""
        try:
            version = (await self._session.get(underreplicated_path(self._root, ledger_id))).stat.version
        except NoNodeError:
            version = None
        return TakenLedger(ledger_id, version) if await self._lock(ledger_id) else None

    async def complete(self, taken: TakenLedger) -> None:
        """Delete the mark, unless it changed since it was taken; the lock stays until ``release``.

        If cancelled, the mark may or may not be deleted.
        """
        assert taken.ledger_id in self._held  # ``take`` added it, and ``release`` comes later
        if taken.mark_version is None:
            return
        path = underreplicated_path(self._root, taken.ledger_id)
        try:
            await self._session.delete(path, expected=taken.mark_version)
            for _ in range(_LEVELS):
                path = parent_of(path)
                await self._session.delete(path, expected=(await self._session.get(path)).stat.version)
        except BadVersionError:
            pass  # it was marked again during the work, and the next round restores that
        except (NoNodeError, NotEmptyError):
            pass

    async def release(self, taken: TakenLedger) -> None:
        """Delete the lock. It cannot be cancelled.

        It waits at most ``RELEASE_TIMEOUT_S`` for the store; ``RELEASE_CANCELLED_TIMEOUT_S`` if the caller is
        cancelled.
        """
        is_cancelled = trio.current_effective_deadline() == -math.inf
        timeout_s = RELEASE_CANCELLED_TIMEOUT_S if is_cancelled else RELEASE_TIMEOUT_S
        path = self.lock_path(taken.ledger_id)
        # Until the outcome is known the lock counts as held: ``take`` would take it over, and lose it to the
        # next attempt to delete it.
        is_gone = False
        with trio.move_on_after(timeout_s) as scope:
            scope.shield = True
            while not is_gone:
                try:
                    if await self._is_own(path):
                        await self._session.delete(path)
                    is_gone = True
                except ConnectionLostError:
                    await trio.sleep(RELEASE_PAUSE_S)
                except (NoNodeError, SessionExpiredError):
                    is_gone = True
        self._held.discard(taken.ledger_id)
        if not is_gone:
            self._strays.add(taken.ledger_id)
        if self._take_watch is not None:
            self._take_watch.set()  # the last call of ``take`` may have left this ledger out

    def lock_path(self, ledger_id: int) -> str:
        """The node of a ledger's lock; its version is 0 for as long as it exists."""
        return underreplicated_lock_path(self._root, ledger_id)

    async def _is_own(self, path: str) -> bool:
        """True if the lock belongs to this session. After a lost reply it may be another program's."""
        stat = await self._session.exists(path)
        return stat is not None and stat.ephemeral_owner == self._session.session_id

    async def _lock(self, ledger_id: int) -> bool:
        if ledger_id in self._held:
            return False
        path, was_stray = self.lock_path(ledger_id), ledger_id in self._strays
        self._strays.add(ledger_id)  # until the outcome is known
        try:
            await self._session.create(path, encode_lock(self._host_name), ephemeral=True, parents=True)
        except NodeExistsError:
            # Ours, if the reply to an earlier creation or deletion was lost.
            if not (was_stray and await self._is_own(path)):
                self._strays.discard(ledger_id)
                return False
        self._strays.discard(ledger_id)
        self._held.add(ledger_id)
        return True

    # --- switches -------------------------------------------------------------------------------------------

    async def is_enabled(self, watch: trio.Event | None = None) -> bool:
        """True unless an operator switched auto-recovery off."""
        return await self._session.exists(self._path(UNDERREPLICATION_DISABLE), watch=watch) is None

    async def wait_enabled(self) -> None:
        """Return while auto-recovery is switched on."""
        while not await self.is_enabled(watch := trio.Event()):
            await watch.wait()

    async def switch(self, *, on: bool) -> bool:
        """Switch auto-recovery of the whole cluster on or off; return False if it was so already.

        If cancelled, it may or may not be switched.
        """
        path = self._path(UNDERREPLICATION_DISABLE)
        try:
            if on:
                await self._session.delete(path)
            else:
                await self._session.create(path, parents=True)
        except (NodeExistsError, NoNodeError):
            return False
        return True

    async def recovery_delay(self, watch: trio.Event | None = None) -> RecoveryDelay:
        """How long the auditor waits for a lost bookie before it marks ledgers.

        Raises:
            MetadataFormatError: The node does not parse.
        """
        path = self._path(LOST_BOOKIE_RECOVERY_DELAY)
        while True:
            try:
                node = await self._session.get(path, watch=watch)
            except NoNodeError:
                # Without the node there is no watch. Watch for its creation.
                if await self._session.exists(path, watch=watch) is None:
                    return RecoveryDelay(0, None)
                continue
            try:
                return RecoveryDelay(decode_delay(node.value), node.stat.version)
            except MetadataFormatError as exc:
                raise MetadataFormatError(f"{path}: {exc}") from None

    async def set_recovery_delay(self, seconds: int) -> None:
        """Set the delay. The auditor reacts also if the value is the same: then it audits at once.

        If cancelled, it may or may not be set.
        """
        path = self._path(LOST_BOOKIE_RECOVERY_DELAY)
        while True:
            try:
                await self._session.put(path, encode_delay(seconds))
                return
            except NoNodeError:
                pass
            try:
                await self._session.create(path, encode_delay(seconds), parents=True)
                return
            except NodeExistsError:
                continue

    async def init_recovery_delay(self, seconds: int) -> None:
        """Set the delay if it was never set."""
        await self._ensure(LOST_BOOKIE_RECOVERY_DELAY, encode_delay(seconds))

    async def checked_ms(self, check: RegularCheck, watch: trio.Event | None = None) -> int | None:
        """When the last such check was completed, epoch milliseconds; None: never.

        ``watch`` is set when the time changes.
        """
        path = self._path(check.value)
        try:
            return decode_check_time((await self._session.get(path, watch=watch)).value)
        except NoNodeError:
            if watch is not None and await self._session.exists(path, watch=watch) is not None:
                watch.set()  # written since
            return None
        except MetadataFormatError as exc:
            raise MetadataFormatError(f"{path}: {exc}") from None

    async def set_checked(self, check: RegularCheck) -> int:
        """Record that such a check was completed now; return the time, epoch milliseconds."""
        now_ms = self._wall_ms()
        await self._put_checked(check, now_ms)
        return now_ms

    async def force_check(self, check: RegularCheck) -> None:
        """Make the next such check due now.

        Our auditor begins soon, also if its interval for the check is 0; Apache's at its next start. If
        cancelled, it may or may not be due.
        """
        await self._put_checked(check, 0)  # longer ago than any interval

    async def _put_checked(self, check: RegularCheck, epoch_ms: int) -> None:
        data = encode_check_time(epoch_ms)
        await self._ensure(check.value, data)
        await self._session.put(self._path(check.value), data)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    async def _ensure(self, name: str, data: bytes) -> None:
        try:
            await self._session.create(self._path(name), data, parents=True)
        except NodeExistsError:
            pass

    async def _names(self, path: str, watch: trio.Event | None = None) -> Sequence[str]:
        try:
            return (await self._session.children(path, watch=watch)).names
        except NoNodeError:
            if watch is not None:
                await self._session.exists(path, watch=watch)  # without the node there is no watch
            return ()
