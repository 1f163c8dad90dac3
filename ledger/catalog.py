"""The ledgers of a cluster in the metadata store: their metadata by compare-and-set, their list.

Inside: creating, reading, writing and deleting a ledger's node; listing; the layout node.
Not inside: which change of metadata is legal (``metadata``), new ledger ids (``ledger_ids``), node names
(``paths``).
Always: metadata is only written over the version it was derived from; a listing is complete or raises, for
bookies delete what a listing does not show; bytes that do not parse are an error and never "no such ledger".

Source: AbstractZkLedgerManager.java and its layouts; bookkeeper-metadata reference sections 3, 9, 11.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import attrs
import trio

from ledger.errors import LedgerExistsError, MetadataFormatError, NoSuchLedgerError
from ledger.ledger_ids import LedgerIds
from ledger.metadata import LedgerMetadata
from ledger.metadata_codec import decode_metadata, encode_metadata
from ledger.paths import LAYOUT, LEDGER_ID_MAX, Layout, decode_layout, ledger_id_of, ledger_path
from namespace.errors import (
    ConnectionLostError,
    NodeExistsError,
    NoNodeError,
    StoreError,
)
from namespace.store import MetadataStore, parent_of

CREATOR_TOKEN_STOP = 2**63 - 1
CREATE_ATTEMPTS_MAX = 10


@attrs.frozen
class Versioned:
    """A ledger's metadata as the store held it at one version."""

    ledger_id: int
    metadata: LedgerMetadata
    version: int


@attrs.frozen
class LedgerRange:
    """Every ledger that existed between two ids, both inclusive, when it was listed."""

    first: int
    last: int
    ledger_ids: tuple[int, ...]  # ascending


class LedgerCatalog:
    """Metadata of all ledgers under one root."""

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

    async def create(self, metadata: LedgerMetadata, ledger_id: int | None = None) -> Versioned:
        """Record a new ledger; return it with its id.

        If cancelled, the ledger may exist, open and empty.

        Args:
            ledger_id: The id to use; None for a new one.

        Raises:
            LedgerExistsError: The given id is taken.
            namespace.errors.StoreError: The store failed; the ledger may or may not exist.
        """
        # The token tells our own node, made by an attempt whose answer was lost, from somebody else's.
        metadata = attrs.evolve(metadata, creator_token=self._rng.randrange(CREATOR_TOKEN_STOP))
        for _ in range(CREATE_ATTEMPTS_MAX):
            wanted = await self._ids.new() if ledger_id is None else ledger_id
            try:
                return await self._create_node(metadata, wanted)
            except LedgerExistsError:
                if ledger_id is not None:
                    raise
        raise LedgerExistsError(wanted)

    async def get(self, ledger_id: int, *, watch: trio.Event | None = None) -> Versioned:
        """A ledger's metadata. The watch is set once, when it changes or the ledger is deleted.

        Raises:
            NoSuchLedgerError: There is no such ledger.
            MetadataFormatError: What is stored does not parse.
        """
        try:
            node = await self._store.get(self.path(ledger_id), watch=watch)
        except NoNodeError:
            raise NoSuchLedgerError(ledger_id) from None
        return Versioned(ledger_id, decode_metadata(node.value), node.stat.version)

    async def get_newest(self, ledger_id: int) -> Versioned:
        """A ledger's metadata with every change that was made before the call.

        An ordinary read may come from a server of the store that lags behind.

        Raises: what ``get`` raises.
        """
        await self._store.sync(self.path(ledger_id))
        return await self.get(ledger_id)

    async def put(self, ledger_id: int, metadata: LedgerMetadata, *, expected: int) -> Versioned:
        """Write metadata over the expected version; return it with its new one.

        If cancelled, it may or may not be written.

        Raises:
            namespace.errors.BadVersionError: Somebody else wrote; read and decide anew.
            namespace.errors.ConnectionLostError: It may or may not be written.
            NoSuchLedgerError: The ledger was deleted.
        """
        metadata = attrs.evolve(metadata, creator_token=0)  # random only in a node's version 0
        try:
            stat = await self._store.put(self.path(ledger_id), encode_metadata(metadata), expected=expected)
        except NoNodeError:
            raise NoSuchLedgerError(ledger_id) from None
        return Versioned(ledger_id, metadata, stat.version)

    async def delete(self, ledger_id: int) -> None:
        """Remove a ledger's metadata, whatever its state; bookies notice and free its space later.

        Deleting a ledger that does not exist is success. If cancelled, it may or may not be deleted.
        """
        path = self.path(ledger_id)
        try:
            await self._store.delete(path)
        except NoNodeError:
            pass  # the outcome that was asked for
        if self.layout in (Layout.FLAT, Layout.LEGACY_HIERARCHICAL):
            return  # these keep their inner nodes
        path = parent_of(path)
        while len(path) > len(self.root):
            try:
                await self._store.delete(path)
            except StoreError:
                return  # not empty, or gone, or out of reach: an empty parent harms nobody
            path = parent_of(path)

    async def ledger_ids(self) -> list[int]:
        """The ids of all ledgers, ascending. Raises rather than leave one out."""
        return [ledger_id async for each in self.ledger_ranges() for ledger_id in each.ledger_ids]

    async def ledger_ranges(self) -> AsyncIterator[LedgerRange]:
        """All ledgers in ranges that together cover every possible id, ascending.

        An id inside a range and not in its ``ledger_ids`` was no ledger when the range was read. Who stops
        before the end surrounds it with ``contextlib.aclosing``.

        Raises:
            namespace.errors.StoreError: The listing is incomplete; nothing may be concluded about ids
                beyond the last range.
        """
        first = 0
        for digits, depth in self._trees():
            todo = [(self.root, depth)]  # the next to visit is the last; ids ascend in the order of visits
            while todo:
                path, levels = todo.pop()
                if levels:
                    names = reversed(await self._inner_names(path, digits if path == self.root else 4))
                    todo += [(f"{path}/{name}", levels - 1) for name in names]
                elif ids := await self._leaves(path):
                    assert ids[0] >= first
                    yield LedgerRange(first, ids[-1], tuple(ids))
                    first = ids[-1] + 1
        if first <= LEDGER_ID_MAX:
            yield LedgerRange(first, LEDGER_ID_MAX, ())

    def path(self, ledger_id: int) -> str:
        """The node that holds a ledger's metadata."""
        return ledger_path(self.root, self.layout, ledger_id)

    async def _create_node(self, metadata: LedgerMetadata, ledger_id: int) -> Versioned:
        path, data = self.path(ledger_id), encode_metadata(metadata)
        try:
            await self._store.create(path, data, parents=True)
        except NodeExistsError:
            pass
        except ConnectionLostError:
            # It may have been made. If the store is still away, this raises, with the same meaning.
            await self._store.sync(path)
            if await self._store.exists(path) is None:
                try:
                    await self._store.create(path, data, parents=True)
                    return Versioned(ledger_id, metadata, 0)
                except NodeExistsError:
                    pass  # it came to be just now; its token tells whose it is
        else:
            return Versioned(ledger_id, metadata, 0)
        try:
            found = await self.get(ledger_id)
        except (NoSuchLedgerError, MetadataFormatError):
            raise LedgerExistsError(ledger_id) from None
        if found.version == 0 and found.metadata.creator_token == metadata.creator_token:
            return found
        raise LedgerExistsError(ledger_id)

    def _trees(self) -> list[tuple[int, int]]:
        """(digits of the first level, inner levels) of this layout's trees, in the order of their ids."""
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
            return ()  # it vanished since its parent was read: everything below was deleted


async def open_catalog(
    store: MetadataStore, root: str, layout: Layout | None = None, *, rng: random.Random | None = None
) -> LedgerCatalog:
    """The catalog under a root, in the layout its LAYOUT node names.

    Without such a node the layout is written: ``layout``, or hierarchical. If cancelled, it may be.

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
            pass  # somebody else was faster; what they wrote counts
        node = await store.get(path)
    found = decode_layout(node.value)
    if layout is not None and found is not layout:
        raise MetadataFormatError(
            f"{path} names the layout {found.name}, but {layout.name} was asked for; ask for none to take it"
        )
    return LedgerCatalog(store, root, found, rng=rng)
