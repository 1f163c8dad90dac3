"""A bookie without cookies and the one metadata store that may say which of its ledgers are deleted.

A metadata store that was wiped, put back from a backup, or belongs to another bookie does not name ledgers
that are alive. So the two are bound, by what lies in both:

- an *instance id*: the node ``INSTANCEID`` below the ledgers root, and the file ``METADATA`` of the bookie;
- *how many ledger ids were given out*: the counter of ids in the store, and in ``METADATA`` its greatest
  value seen. A store that is not older has given out every id on the disk, and no fewer than it ever had.

| ``METADATA`` | the store | |
|---|---|---|
| fits | all ids on the disk given out, and no fewer than before | OWN |
| fits | otherwise | OLDER: it gets a new instance id, so that it stays told when its counter has passed |
| none | names every ledger of the disk | ADOPTED: ``METADATA`` is written |
| none | lacks one | UNNAMED |
| does not fit, or damaged | | FOREIGN |

But for OWN and ADOPTED nobody collects garbage; everything else goes on, and ids on the disk are skipped, so
that a new ledger never meets an old one. Who knows that the store is right all the same leaves an empty file
``ACCEPT_METADATA`` beside ``METADATA``.

Decided before anything is served: nobody can have drawn an id from an older store then. A new store has its
id before the file is written; a crash between the two leaves an empty bookie without the file, ADOPTED at
the next start. The file's number is written behind the store's, and before a round deletes anything.

Inside: the file, the comparison, what it writes; which ledgers exist, as long as the two fit. Not inside:
cookies (``cookie_check``), the rounds (``gc``).
Always: doubt deletes nothing; the files are written by ``replace_file``.

Source: our own; ``incarnation`` asks the opposite question, whether the disks are older than the store.
"""

from __future__ import annotations

import enum
import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bookie.cookie_check import read_instance_id
from bookie.disk import NO_SPACE
from bookie.live_ledgers import ClusterChangedError, named_ledgers
from ledger.paths import INSTANCE_ID, Layout, id_prefix
from namespace.errors import NodeExistsError, StoreError
from namespace.store import Create, Delete, MetadataStore, Operation, parent_of

if TYPE_CHECKING:
    from bookie.disk import Disk

METADATA = "METADATA"
ACCEPT = "ACCEPT_METADATA"
_SKIPPED_AT_ONCE = 1000  # ids, in one transaction
_SKIPPED_MAX = 1_000_000  # a minute's work; an id farther away is no ledger of such a store's making

log = logging.getLogger(__name__)


@attrs.frozen
class Bound:
    """The content of ``METADATA``."""

    instance_id: str
    given_out: int  # so many ids had been given out: all below it


class Verdict(enum.Enum):
    """What the comparison says; see the table above."""

    OWN = "it is this bookie's"
    ADOPTED = "it names every ledger of this bookie, which was bound to none"
    OLDER = "it is older than this bookie's ledgers: a backup put back?"
    UNNAMED = "it does not name every ledger of this bookie, which was never bound to one"
    FOREIGN = "it is not the one this bookie was bound to: wiped, or another's?"


def encode_bound(bound: Bound) -> bytes:
    """The content of ``METADATA``."""
    return f"{bound.instance_id} {bound.given_out}\n".encode()


def decode_bound(data: bytes) -> Bound | None:
    """None if the bytes are none."""
    words = data.decode("ascii", "replace").split()
    if len(words) != 2 or not data.endswith(b"\n") or len(words[1]) > 19 or not words[1].isdecimal():
        return None
    return Bound(words[0], int(words[1]))


def judge(
    bound: Bound | None, instance_id: str, given_out: int, on_disk: Collection[int], named: Collection[int]
) -> Verdict:
    """Compare. ``on_disk``: the bookie's ledgers; ``named``: those the store names."""
    is_older = given_out <= max(on_disk, default=-1)
    if bound is None:
        return Verdict.UNNAMED if is_older or not set(on_disk).issubset(named) else Verdict.ADOPTED
    if bound.instance_id != instance_id:
        return Verdict.FOREIGN
    return Verdict.OLDER if is_older or given_out < bound.given_out else Verdict.OWN


async def ids_given_out(store: MetadataStore, root: str, layout: Layout) -> int:
    """How many (short) ledger ids the store has given out: the next one."""
    stat = await store.exists(parent_of(id_prefix(root, layout)))
    # It counts creations and deletions of children, and has the difference of the two.
    return 0 if stat is None else (stat.child_version + stat.children_count) // 2


async def skip_ids(store: MetadataStore, root: str, layout: Layout, beyond: int) -> None:
    """Let no id up to ``beyond`` be given out any more. If cancelled, some are skipped."""
    prefix = id_prefix(root, layout)
    while (missing := beyond + 1 - await ids_given_out(store, root, layout)) > 0:
        operations: list[Operation] = []
        if await store.exists(parent_of(prefix)) is None:
            operations.append(Create(parent_of(prefix)))
        for _ in range(min(missing, _SKIPPED_AT_ONCE)):
            operations += [Create(f"{prefix}skipped"), Delete(f"{prefix}skipped")]
        await store.commit(operations)


@attrs.define
class BoundMetadata:
    """Answers ``gc.LiveLedgers`` from the store that a bookie is bound to, as long as it is that one."""

    store: MetadataStore
    root: str
    layout: Layout
    is_in_place: Callable[[], bool]  # nobody has put another store where this one was opened; blocks
    _disk: Disk
    _path: Path
    _bound: Bound

    async def __call__(self, local: Sequence[int]) -> Collection[int]:
        """Those of the local ledgers that exist, or may exist.

        Raises:
            ClusterChangedError, NamespaceError, OSError: It cannot be said.
        """
        given_out = await self._check(local)
        if given_out > self._bound.given_out:
            bound = attrs.evolve(self._bound, given_out=given_out)
            try:
                await self._disk.run(self._disk.replace_file, self._path, encode_bound(bound))
            except OSError as exc:
                if exc.errno not in NO_SPACE:
                    raise
                # A round makes room; what is on the disk tells an older store all the same.
                log.warning("%s is not brought up to date: %s", self._path, exc)
            self._bound = bound
        named = await named_ledgers(self.store, self.root, self.layout, local)
        await self._check(local)
        return named

    async def _check(self, local: Sequence[int]) -> int:
        """How many ids the store has given out, which is still the one it was."""
        await self.store.sync(self.root)
        instance_id = await read_instance_id(self.store, self.root) or ""
        given_out = await ids_given_out(self.store, self.root, self.layout)
        verdict = judge(self._bound, instance_id, given_out, local, ())
        if verdict is Verdict.OWN and not await self._disk.run(self.is_in_place):
            verdict = Verdict.FOREIGN
        if verdict is not Verdict.OWN:
            raise ClusterChangedError(
                f"the metadata changed while the bookie ran: {verdict.value} No ledger is deleted. Close what"
                " uses it and open it again"
            )
        return given_out


async def bind_metadata(
    store: MetadataStore,
    root: str,
    layout: Layout,
    disk: Disk,
    directory: Path,
    on_disk: Sequence[int],
    *,
    is_in_place: Callable[[], bool] = lambda: True,
) -> BoundMetadata | None:
    """Compare a bookie and its metadata store, before the bookie is served; None if they do not fit.

    That is logged, with the remedy. If cancelled, the next call goes on.

    Args:
        directory: Where the bookie's files are, ``METADATA`` among them.
        on_disk: The bookie's ledgers.
        is_in_place: Asked in each round: whether the store's file is still the one that is open here.

    Raises:
        NamespaceError, OSError: They cannot be compared.
    """
    path = directory / METADATA
    instance_id = await _instance_id(store, root)
    given_out = await ids_given_out(store, root, layout)
    bound = await disk.run(_read, disk, path)
    greatest = max(on_disk, default=-1)
    if await disk.run(_take_away, disk, directory / ACCEPT):
        log.warning("%s: the metadata is taken for right, as %s says", directory, ACCEPT)
        verdict = Verdict.ADOPTED
    elif bound is _DAMAGED:
        verdict = Verdict.FOREIGN
    else:
        named: set[int] = set()
        if bound is None and on_disk:
            # The listing alone: to look for each that is not in it takes long, and finds those being made,
            # of which the disk has none.
            named = await named_ledgers(store, root, layout, ())
        verdict = judge(bound, instance_id, given_out, on_disk, named)
    if verdict is Verdict.OLDER:
        # Not before: from then on ids may be drawn, and its counter catches up with the disk.
        await store.put(f"{root}/{INSTANCE_ID}", str(uuid.uuid4()).encode())
    if given_out <= greatest < given_out + _SKIPPED_MAX:
        await skip_ids(store, root, layout, greatest)
        given_out = await ids_given_out(store, root, layout)
    if verdict not in (Verdict.OWN, Verdict.ADOPTED):
        log.warning(
            "%s: space of deleted logs is not given back, for the metadata cannot be trusted to say what is"
            " deleted: %s Put the right metadata back; or, if this one is right and what it does not"
            " name may be deleted for good, create an empty file %s. Then open it again",
            directory,
            verdict.value,
            directory / ACCEPT,
        )
        return None
    if verdict is Verdict.ADOPTED or bound is None:
        bound = Bound(instance_id, given_out)
        await disk.run(disk.replace_file, path, encode_bound(bound))
    return BoundMetadata(store, root, layout, is_in_place, disk, path, bound)


_DAMAGED = Bound("", 0)


def _read(disk: Disk, path: Path) -> Bound | None:
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return None
    return decode_bound(data) or _DAMAGED


def _take_away(disk: Disk, path: Path) -> bool:
    """Whether the file was there; gone for good before anything follows from it."""
    if path.name not in disk.list_directory(path.parent):
        return False
    disk.unlink(path)
    disk.sync_directory(path.parent)
    return True


async def _instance_id(store: MetadataStore, root: str) -> str:
    """The store's, made if it has none."""
    found = await read_instance_id(store, root)
    if found is None:
        try:
            await store.create(f"{root}/{INSTANCE_ID}", str(uuid.uuid4()).encode())
        except NodeExistsError:
            pass
        found = await read_instance_id(store, root)
    if not found:
        raise StoreError(f"{root}/{INSTANCE_ID}", "it is empty")
    return found
