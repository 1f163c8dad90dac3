"""The bookies that are registered now, read from the store and not from memory.

An audit that missed a registered bookie would mark all its ledgers. So the lists are read in an order in
which no change of a bookie between writable and read-only hides it: both nodes exist during the change.

Source: AuditorBookieCheckTask.java; docs/metadata.md 7.3.
"""

from __future__ import annotations

import attrs

from ledger.catalog.paths import AVAILABLE, COOKIES, READONLY, READONLY_NAME
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.store import MetadataStore, Stat


@attrs.frozen
class RegisteredBookies:
    """The lists at one moment. A bookie with both nodes counts as read-only."""

    writable: frozenset[str]
    readonly: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """Bookies that can be read from."""
        return self.writable | self.readonly


async def read_registered(store: MetadataStore, root: str) -> RegisteredBookies:
    """Read both lists with every change made before the call."""
    available = f"{root}/{AVAILABLE}"
    await store.sync(available)
    before = await _children(store, available)
    readonly = await _children(store, f"{root}/{READONLY}")
    after = await _children(store, available)
    return RegisteredBookies((before | after) - readonly - {READONLY_NAME}, readonly)


async def read_registrations(store: MetadataStore, root: str) -> dict[str, Stat]:
    """The registered bookies, each with the stat of the node with which it is registered.

    A bookie that restarted has a node of another session, also if nobody saw that its node was missing.
    """
    found = {}
    for bookie in (await read_registered(store, root)).all:
        for path in (f"{root}/{AVAILABLE}/{bookie}", f"{root}/{READONLY}/{bookie}"):
            if (stat := await store.exists(path)) is not None:
                found[bookie] = stat
                break
    return found


async def read_cookie_owners(store: MetadataStore, root: str) -> frozenset[str]:
    """The bookies that belong to the cluster: those with a cookie."""
    return await _children(store, f"{root}/{COOKIES}")


async def _children(store: MetadataStore, path: str) -> frozenset[str]:
    try:
        return frozenset((await store.children(path)).names)
    except NoNodeError:
        return frozenset()
