"""The one way up from this package: a bookie that has to run in this process is looked up by name.

Inside: what this package asks of a bookie, and the lookup. Not inside: the bookie (``bookie.embedded``).
Always: a process that finds another one hosting the directory does not import the bookie, whose import takes
longer than all the rest.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, cast

import trio

from ledger.catalog.paths import Layout
from ledger.deploy.directory import Directory
from ledger.metadata_store.store import MetadataStore
from ledger.transport.dial import Address

BOOKIE = "bookie.embedded"


class HostedSpace(Protocol):
    """The watch over the free space of a directory."""

    @property
    def is_enough(self) -> trio.Event: ...

    def free_bytes(self) -> int: ...


class HostedGarbage(Protocol):
    """The garbage collection of a directory."""

    async def collect(self) -> object: ...

    async def compact(self, on_round: Callable[[int], None]) -> int: ...


class HostedBookie(Protocol):
    """The bookie that runs here."""

    @property
    def space(self) -> HostedSpace: ...

    @property
    def garbage(self) -> HostedGarbage | None: ...

    @property
    def is_full(self) -> bool: ...

    def serve(self, stream: trio.abc.Stream) -> None: ...

    def ledger_deleted(self) -> None: ...


class Snapshot(Protocol):
    """The files of a directory at one moment, and the bookie above them."""

    async def is_current(self) -> bool: ...

    async def dial(self, address: Address, /) -> trio.abc.Stream: ...

    async def run(
        self, store: MetadataStore, root: str, layout: Layout, *, task_status: trio.TaskStatus[None]
    ) -> None: ...


class FoundDamage(Protocol):
    """The damage that a look at the files of a directory's bookie has found."""

    @property
    def evidence(self) -> tuple[str, ...]: ...


class BookieRepair(Protocol):
    """The module ``bookie.embedded.repair``."""

    async def find_bookie_damage(self, path: Path) -> FoundDamage: ...

    async def mend_bookie(self, path: Path, damage: FoundDamage) -> tuple[str, ...]: ...

    async def trim_journal(self, path: Path) -> None: ...


class EmbeddedBookie(Protocol):
    """The package ``bookie.embedded``."""

    def open_hosted_bookie(
        self,
        directory: Directory,
        store: MetadataStore,
        root: str,
        layout: Layout,
        identity: tuple[int, int] | None,
        *,
        more_than_bytes: int = 0,
    ) -> AbstractAsyncContextManager[HostedBookie]: ...

    async def take_snapshot(self, path: Path) -> Snapshot: ...


def embedded_bookie() -> EmbeddedBookie:
    """Import the package that runs bookies in this process."""
    return cast(EmbeddedBookie, importlib.import_module(BOOKIE))


def bookie_repair() -> BookieRepair:
    """Import the module that mends the files of a directory's bookie."""
    return cast(BookieRepair, importlib.import_module(f"{BOOKIE}.repair"))
