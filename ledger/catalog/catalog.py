"""The ledgers of a cluster in the metadata store: their metadata by compare-and-set, their list.

Inside: creating, reading, writing and deleting the node of a ledger; listing; the layout node.
Not inside: which changes of metadata are legal (``metadata``), new ledger ids (``ledger_ids``), node names
(``paths``).
Always: metadata is written only over the version it was derived from. A listing is complete or raises,
because bookies delete each ledger that it lacks. Bytes that do not parse are an error, never "no such
ledger".

Source: AbstractZkLedgerManager.java and its layouts; docs/metadata.md 3, 9, 11.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncGenerator, Awaitable, Callable

import attrs
import trio

from ledger.catalog.ledger_ids import LedgerIds
from ledger.catalog.metadata_codec import MAGIC, check_bounds, decode_metadata, encode_metadata
from ledger.catalog.paths import LAYOUT, LEDGER_ID_MAX, Layout, decode_layout, ledger_id_of, ledger_path
from ledger.errors import LedgerExistsError, MetadataFormatError, NoSuchLedgerError
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import (
    BadVersionError,
    ConnectionLostError,
    NodeExistsError,
    NoNodeError,
    StoreError,
)
from ledger.metadata_store.store import ANY_VERSION, Check, Create, MetadataStore, Put, parent_of

CREATOR_TOKEN_STOP = 2**63 - 1
CREATE_ATTEMPTS_MAX = 10
DECODED_AT_ONCE_BYTES_MAX = 65_536  # longer metadata are decoded in a thread, so that the loop continues

# Creates the node of a ledger in a transaction of the caller. The errors about this node are passed on.
CommitLedger = Callable[[int, Create], Awaitable[None]]


@attrs.frozen
class Versioned:
    """The metadata of a ledger with its version in the store."""

    ledger_id: int
    metadata: LedgerMetadata
    version: int


@attrs.frozen
class StoredLedger:
    """The metadata of a ledger with the facts that the store keeps about their node."""

    ledger_id: int
    metadata: LedgerMetadata
    version: int
    created_ms: int  # by the store's clock, epoch milliseconds


@attrs.frozen
class LedgerRange:
    """All ledgers between two ids, both inclusive, at the time of the listing."""

    first: int
    last: int
    ledger_ids: tuple[int, ...]  # ascending


class LedgerCatalog:
    """The metadata of all ledgers under one root."""

    def __init__(
        self, store: MetadataStore, root: str, layout: Layout, *, rng: random.Random | None = None
    ) -> None:
        self.root = root
        self.layout = layout
        self._store = store
        self._rng = rng or random.SystemRandom()
        self._ids = LedgerIds(store, root, layout)

    def __repr__(self) -> str:
        return f"<LedgerCatalog {self.root} {self.layout.name}>"

    @property
    def store(self) -> MetadataStore:
        """The store that holds the nodes."""
        return self._store

    async def create(
        self, metadata: LedgerMetadata, ledger_id: int | None = None, *, commit: CommitLedger | None = None
    ) -> Versioned:
        """Create a ledger's node; return its metadata and id.

        If cancelled, the ledger may exist, open and empty.

        Args:
            ledger_id: The id to use; None for a new one.
            commit: Called instead of creating the node, perhaps again with another id; its errors are raised.

        Raises:
            LedgerExistsError: The given id is taken.
            ledger.metadata_store.errors.StoreError: The store failed; the ledger may or may not exist.
        """
        # The token identifies our own node if the reply to an attempt was lost.
        metadata = attrs.evolve(metadata, creator_token=self._rng.randrange(CREATOR_TOKEN_STOP))
        for _ in range(CREATE_ATTEMPTS_MAX):
            wanted = await self._ids.new() if ledger_id is None else ledger_id
            try:
                if commit is not None:
                    return await self._commit_node(metadata, wanted, commit)
                return await self._create_node(metadata, wanted)
            except LedgerExistsError:
                if ledger_id is not None:
                    raise
        raise LedgerExistsError(wanted)

    async def get(self, ledger_id: int, *, watch: trio.Event | None = None) -> Versioned:
        """Read a ledger's metadata. The watch is set once, when they change or the ledger is deleted.

        Raises:
            NoSuchLedgerError: There is no such ledger.
            MetadataFormatError: The stored bytes do not parse.
        """
        try:
            node = await self._store.get(self.path(ledger_id), watch=watch)
        except NoNodeError:
            raise NoSuchLedgerError(ledger_id) from None
        return Versioned(ledger_id, await self._decoded(ledger_id, node.value), node.stat.version)

    async def get_newest(self, ledger_id: int) -> Versioned:
        """Read a ledger's metadata with every change made before the call.

        ``get`` may read from a server of the store that lags behind.

        Raises: what ``get`` raises.
        """
        await self._store.sync(self.path(ledger_id))
        return await self.get(ledger_id)

    async def stored(self, ledger_id: int) -> StoredLedger:
        """Read a ledger's metadata with every change made before the call, and the age of their node.

        Raises: what ``get`` raises.
        """
        path = self.path(ledger_id)
        await self._store.sync(path)
        try:
            node = await self._store.get(path)
        except NoNodeError:
            raise NoSuchLedgerError(ledger_id) from None
        metadata = await self._decoded(ledger_id, node.value)
        return StoredLedger(ledger_id, metadata, node.stat.version, node.stat.created_ms)

    async def put(
        self, ledger_id: int, metadata: LedgerMetadata, *, expected: int, lock: str | None = None
    ) -> Versioned:
        """Write metadata over the expected version; return them with their new version.

        If cancelled, they may or may not be written.

        Args:
            lock: A node that must exist, in version 0, when the metadata are written: a lock of the caller.

        Raises:
            ledger.metadata_store.errors.BadVersionError: Another client wrote; read and decide again.
            ledger.metadata_store.errors.ConnectionLostError: They may or may not be written.
            ledger.metadata_store.errors.NoNodeError: The lock is gone; nothing was written.
            NoSuchLedgerError: The ledger was deleted.
        """
        metadata = attrs.evolve(metadata, creator_token=0)  # only version 0 of a node has a token
        try:
            if lock is not None:
                data = _encoded(metadata)
                await self._store.commit([Check(lock, 0), Put(self.path(ledger_id), data, expected)])
                return Versioned(ledger_id, metadata, expected + 1)
            stat = await self._store.put(self.path(ledger_id), _encoded(metadata), expected=expected)
        except (NoNodeError, BadVersionError) as exc:
            if exc.path == lock:
                raise NoNodeError(lock, "the lock is lost") from exc
            if isinstance(exc, BadVersionError):
                raise
            raise NoSuchLedgerError(ledger_id) from None
        return Versioned(ledger_id, metadata, stat.version)

    async def delete(self, ledger_id: int, *, expected: int = ANY_VERSION) -> None:
        """Remove a ledger's metadata in any state; the bookies free its space later.

        Succeeds if the ledger does not exist. If cancelled, it may or may not be deleted.

        Raises:
            ledger.metadata_store.errors.BadVersionError: The metadata have another version.
                Nothing was deleted.
        """
        path = self.path(ledger_id)
        try:
            await self._store.delete(path, expected=expected)
        except NoNodeError:
            pass  # it is deleted
        if self.layout in (Layout.FLAT, Layout.LEGACY_HIERARCHICAL):
            return  # these layouts keep their inner nodes
        path = parent_of(path)
        while len(path) > len(self.root):
            try:
                await self._store.delete(path)
            except StoreError:
                return  # not empty, gone, or unreachable; an empty parent does no harm
            path = parent_of(path)

    async def ledger_ids(self) -> list[int]:
        """The ids of all ledgers, ascending. Raises if the listing is incomplete."""
        return [ledger_id async for each in self.ledger_ranges() for ledger_id in each.ledger_ids]

    async def ledger_ranges(self) -> AsyncGenerator[LedgerRange, None]:
        """All ledgers, in ascending ranges that together cover every possible id.

        An id in a range that is not in its ``ledger_ids`` was no ledger when the range was read. A caller
        that stops before the end wraps the iterator in ``contextlib.aclosing``.

        Raises:
            ledger.metadata_store.errors.StoreError: The listing is incomplete: ids beyond the last range
                may or may not exist.
        """
        first = 0
        for digits, depth in self._trees():
            todo = [(self.root, depth)]  # a stack; ids ascend in the order of visits
            while todo:
                path, levels = todo.pop()
                if levels:
                    names = reversed(await self._inner_names(path, digits if path == self.root else 4))
                    todo += [(f"{path}/{name}", levels - 1) for name in names]
                elif ids := await self._leaves(path):
                    if ids[0] < first:  # a store that lists one node twice
                        raise MetadataFormatError(f"{path}: the ledger {ids[0]} is listed a second time")
                    yield LedgerRange(first, ids[-1], tuple(ids))
                    first = ids[-1] + 1
        if first <= LEDGER_ID_MAX:
            yield LedgerRange(first, LEDGER_ID_MAX, ())

    def path(self, ledger_id: int) -> str:
        """The node that holds a ledger's metadata."""
        return ledger_path(self.root, self.layout, ledger_id)

    async def _decoded(self, ledger_id: int, data: bytes) -> LedgerMetadata:
        try:
            if len(data) > DECODED_AT_ONCE_BYTES_MAX and data.startswith(MAGIC):
                return await trio.to_thread.run_sync(decode_metadata, data)
            return decode_metadata(data)
        except MetadataFormatError as exc:
            raise MetadataFormatError(f"{self.path(ledger_id)}: {exc}") from None

    async def _create_node(self, metadata: LedgerMetadata, ledger_id: int) -> Versioned:
        path, data = self.path(ledger_id), _encoded(metadata)
        try:
            await self._store.create(path, data, parents=True)
        except NodeExistsError:
            pass
        except ConnectionLostError:
            # The node may have been created. If the store is still unreachable, this raises the same error.
            await self._store.sync(path)
            if await self._store.exists(path) is None:
                try:
                    await self._store.create(path, data, parents=True)
                    return Versioned(ledger_id, metadata, 0)
                except NodeExistsError:
                    pass  # it was created just now; the token below shows by which client
        else:
            return Versioned(ledger_id, metadata, 0)
        try:
            found = await self.get(ledger_id)
        except (NoSuchLedgerError, MetadataFormatError):
            raise LedgerExistsError(ledger_id) from None
        if found.version == 0 and found.metadata.creator_token == metadata.creator_token:
            return found
        raise LedgerExistsError(ledger_id)

    async def _commit_node(self, metadata: LedgerMetadata, ledger_id: int, commit: CommitLedger) -> Versioned:
        path = self.path(ledger_id)
        for attempt in itertools.count(1):
            try:
                await commit(ledger_id, Create(path, _encoded(metadata)))
            except NodeExistsError as exc:
                if exc.path != path:
                    raise
                raise LedgerExistsError(ledger_id) from None
            except NoNodeError as exc:
                if exc.path != path or attempt == CREATE_ATTEMPTS_MAX:
                    raise
                # The first ledger of its group, or the last one before it was deleted with the inner nodes.
                try:
                    await self._store.create(parent_of(path), parents=True)
                except NodeExistsError:
                    pass  # another client needs it, too
            else:
                break
        return Versioned(ledger_id, metadata, 0)

    def _trees(self) -> list[tuple[int, int]]:
        """(digits of the first level, inner levels) of each tree of the layout, in the order of ids."""
        match self.layout:
            case Layout.FLAT:
                return [(0, 0)]
            case Layout.LEGACY_HIERARCHICAL:
                return [(2, 2)]
            case Layout.LONG_HIERARCHICAL:
                return [(3, 4)]
            case Layout.HIERARCHICAL:
                return [(2, 2), (3, 4)]

    async def _inner_names(self, path: str, digits: int) -> list[str]:
        return [
            name
            for name in await self._names(path)
            if len(name) == digits and name.isascii() and name.isdigit()
        ]

    async def _leaves(self, parent: str) -> list[int]:
        found = [ledger_id_of(self.root, f"{parent}/{name}") for name in await self._names(parent)]
        return sorted(ledger_id for ledger_id in found if ledger_id is not None)

    async def _names(self, path: str) -> tuple[str, ...]:
        await self._store.sync(path)
        try:
            return (await self._store.children(path)).names
        except NoNodeError:
            return ()  # deleted since its parent was read, with all ledgers below


def _encoded(metadata: LedgerMetadata) -> bytes:
    data = encode_metadata(metadata)
    check_bounds(
        len(data), metadata.ensemble_size, metadata.write_quorum
    )  # what is written can be read again
    return data


async def open_catalog(
    store: MetadataStore, root: str, layout: Layout | None = None, *, rng: random.Random | None = None
) -> LedgerCatalog:
    """Open the catalog under a root, in the layout that its LAYOUT node names.

    If there is no such node, it is created with ``layout``, or hierarchical. If cancelled, it may exist.

    Raises:
        MetadataFormatError: The LAYOUT node does not parse, or names another layout than ``layout``.
    """
    path = f"{root}/{LAYOUT}"
    try:
        node = await store.get(path)
    except NoNodeError:
        wanted = layout or Layout.HIERARCHICAL
        try:
            await store.create(path, wanted.text, parents=True)
        except NodeExistsError:
            pass  # another client created it; its layout counts
        node = await store.get(path)
    try:
        found = decode_layout(node.value)
    except MetadataFormatError as exc:
        raise MetadataFormatError(f"{path}: {exc}") from None
    if layout is not None and found is not layout:
        raise MetadataFormatError(
            f"{path} names the layout {found.name}, but {layout.name} was requested; pass none to accept it"
        )
    return LedgerCatalog(store, root, found, rng=rng)
