"""The binding of a bookie without cookies to the one metadata store whose listing may delete its ledgers.

A metadata store that was wiped, was restored from a backup, or belongs to another bookie does not name all
live ledgers. Therefore three values bind the store to the bookie:

- an *instance id*: in the node ``INSTANCEID`` below the ledgers root, and in the file ``METADATA`` of the
  bookie;
- *the number of ledger ids given out*: the id counter of the store, and in ``METADATA`` the greatest value of
  it that the bookie has seen. A store that is not older has given out all ids on the disk, and its counter
  has not decreased;
- *the number of the last change*, if the store counts its changes, and in ``METADATA`` the one that the
  bookie has seen last. A store without it may lack a deletion or a truncation.

| ``METADATA`` | the store | verdict |
|---|---|---|
| same instance id | has given out all ids on the disk, no fewer than before, and has the last change | OWN |
| same instance id | otherwise | OLDER |
| none | names every ledger on the disk | ADOPTED: ``METADATA`` is written |
| none | lacks a ledger | UNNAMED |
| another instance id, or damaged | | FOREIGN |

With OLDER the bookie does not start, nor with UNNAMED if the store has not given out all ids on the disk, nor
with FOREIGN if it does not name every ledger on the disk: logs would be missing, and new ones would be
written over their names. Nothing is changed then. With another UNNAMED or FOREIGN only the garbage collection
does not run, and the ids on the disk are skipped, so that a new ledger never gets the id of an old one. If
the operator is sure that the store is right, the operator creates an empty file ``ACCEPT_METADATA`` beside
``METADATA``.

The comparison is made before the bookie serves, when no client can have drawn an id from an older store. A
new store gets its instance id before the file is written; a crash between the two leaves an empty bookie
without the file, and the next start says ADOPTED. The numbers in the file are written after those in the
store have grown: before a round deletes a ledger, and at the end.

Inside: the file, the comparison, their writes; the list of live ledgers while the binding holds. Not inside:
cookies (``cookie_check``), the rounds of the garbage collection (``gc``).
Always: no ledger is deleted unless the comparison says OWN or ADOPTED; a store that lacks ledgers of the
bookie is neither written nor served; the files are written by
``replace_file``.

Source: our own. ``incarnation`` is the reverse: it recognises disks that are older than the store.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bookie.disk.disk import NO_SPACE
from bookie.errors import MetadataLostError
from bookie.identity.cookie_check import read_instance_id
from bookie.ledger_metadata.live_ledgers import ClusterChangedError, named_ledgers
from ledger.catalog.paths import INSTANCE_ID, Layout, id_prefix
from ledger.metadata_store.errors import NodeExistsError, StoreError
from ledger.metadata_store.store import Create, Delete, MetadataStore, Operation, parent_of
from ledger.runtime.log_lines import get_logger

if TYPE_CHECKING:
    from bookie.disk.disk import Disk

METADATA = "METADATA"
ACCEPT = "ACCEPT_METADATA"
_SKIPPED_AT_ONCE = 1000  # ids, in one transaction
_SKIPPED_MAX = 1_000_000  # takes a minute; ids farther ahead were not drawn from such a store

log = get_logger(__name__)


@attrs.frozen
class MetadataBinding:
    """The content of ``METADATA``."""

    instance_id: str
    given_out: int  # the number of ids given out; all ids are below it
    last_change: int = 0  # 0: it was not noted


class MetadataVerdict(enum.Enum):
    """The result of the comparison; see the table above."""

    OWN = "it belongs to this bookie"
    ADOPTED = "it names every ledger of this bookie, which was not bound to any metadata"
    OLDER = "it is older than this bookie's ledgers; it may come from a backup."
    UNNAMED = "it does not name every ledger of this bookie, which was not bound to any metadata."
    FOREIGN = (
        "it is not the metadata that this bookie was bound to; it was wiped, or belongs to another bookie."
    )


def encode_binding(binding: MetadataBinding) -> bytes:
    """The content of ``METADATA``."""
    change = f" {binding.last_change}" if binding.last_change else ""
    return f"{binding.instance_id} {binding.given_out}{change}\n".encode()


def decode_binding(data: bytes) -> MetadataBinding | None:
    """The content of ``METADATA``; None if it does not parse."""
    instance_id, *numbers = data.decode("ascii", "replace").split() or ("",)
    if not data.endswith(b"\n") or not 1 <= len(numbers) <= 2:
        return None
    if any(len(each) > 19 or not each.isdecimal() for each in numbers):
        return None
    return MetadataBinding(instance_id, *map(int, numbers))


def compare(
    binding: MetadataBinding | None,
    instance_id: str,
    given_out: int,
    on_disk: Collection[int],
    named: Collection[int],
    last_change: int = 0,
) -> MetadataVerdict:
    """Compare. ``on_disk``: the ledgers of the bookie; ``named``: the ledgers that the store names."""
    is_older = given_out <= max(on_disk, default=-1)
    if binding is None:
        return (
            MetadataVerdict.UNNAMED
            if is_older or not set(on_disk).issubset(named)
            else MetadataVerdict.ADOPTED
        )
    if binding.instance_id != instance_id:
        return MetadataVerdict.FOREIGN
    is_older |= given_out < binding.given_out or last_change < binding.last_change
    return MetadataVerdict.OLDER if is_older else MetadataVerdict.OWN


async def ids_given_out(store: MetadataStore, root: str, layout: Layout) -> int:
    """The number of (short) ledger ids that the store has given out, which is the next id."""
    stat = await store.exists(parent_of(id_prefix(root, layout)))
    # The child version counts creations plus deletions of children; the child count is their difference.
    return 0 if stat is None else (stat.child_version + stat.children_count) // 2


async def skip_ids(store: MetadataStore, root: str, layout: Layout, beyond: int) -> None:
    """Make the store skip all ids up to ``beyond``. If cancelled, some are skipped."""
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
    """Implements ``gc.LiveLedgers`` with the store that a bookie is bound to, while the binding holds."""

    store: MetadataStore
    root: str
    layout: Layout
    is_in_place: Callable[[], bool]  # False if the file of the store was replaced after it was opened; blocks
    _disk: Disk
    _path: Path
    _binding: MetadataBinding

    async def __call__(self, local: Sequence[int]) -> Collection[int]:
        """The ledgers that exist; each local ledger that is not among them was deleted.

        Raises:
            ClusterChangedError, MetadataError, OSError: The store cannot be read, or cannot be trusted.
        """
        await self._note(await self._check(local))
        named = await named_ledgers(self.store, self.root, self.layout, local)
        await self._check(local)
        return named

    async def note(self) -> None:
        """Note what the store has now; at the end, so that an older one is refused later.

        Raises:
            ClusterChangedError, MetadataError, OSError: As a call.
        """
        await self._note(await self._check(()))

    async def _note(self, binding: MetadataBinding) -> None:
        if binding == self._binding:
            return
        try:
            await self._disk.run(self._disk.replace_file, self._path, encode_binding(binding))
        except OSError as exc:
            if exc.errno not in NO_SPACE:
                raise
            # The round will free space. The ids on the disk still reveal an older store.
            log.warning("%s cannot be updated: %s", self._path, exc)
        self._binding = binding

    async def _check(self, local: Sequence[int]) -> MetadataBinding:
        """The present numbers of the store, after a check that the binding still holds."""
        await self.store.sync(self.root)
        instance_id = await read_instance_id(self.store, self.root) or ""
        given_out = await ids_given_out(self.store, self.root, self.layout)
        change = await self.store.last_change()
        verdict = compare(self._binding, instance_id, given_out, local, (), change)
        if verdict is MetadataVerdict.OWN and not await self._disk.run(self.is_in_place):
            verdict = MetadataVerdict.FOREIGN
        if verdict is not MetadataVerdict.OWN:
            raise ClusterChangedError(
                f"the metadata changed while the bookie ran: {verdict.value} No ledger is deleted. Close all"
                " programs that use it and open it again"
            )
        return MetadataBinding(instance_id, given_out, change)


@attrs.frozen
class _Judgement:
    """The comparison of a bookie and its store, and what it was made of."""

    verdict: MetadataVerdict
    binding: MetadataBinding | None
    given_out: int
    unknown: frozenset[int]  # ledgers on the disk that the store neither names nor can have deleted

    def check(self, directory: Path) -> None:
        """Raise ``MetadataLostError`` if logs would be missing."""
        if not self.unknown and self.verdict is not MetadataVerdict.OLDER:
            return
        some = ", ".join(map(str, sorted(self.unknown)[:5])) + (", ..." if len(self.unknown) > 5 else "")
        lacks = f" It does not know {len(self.unknown)} ledgers of this bookie: {some}." if some else ""
        raise MetadataLostError(
            f"{directory}: the metadata cannot be used with this bookie: {self.verdict.value}{lacks} Logs"
            " would be missing, so nothing was opened or changed. If this is a copy of a directory that a"
            " process had open, make one with `dlog backup`. Else bring the metadata back, with its -wal; or,"
            " if this one is right and what it does not name may be deleted for good, make an empty file"
            f" {directory / ACCEPT} and open it again"
        )


async def _decide(
    store: MetadataStore,
    root: str,
    layout: Layout,
    disk: Disk,
    directory: Path,
    on_disk: Sequence[int],
    instance_id: str,
) -> _Judgement:
    given_out = await ids_given_out(store, root, layout)
    binding = await disk.run(_read, disk, directory / METADATA)
    is_bound = binding is not None and binding.instance_id == instance_id
    named: set[int] = set()
    if on_disk and not is_bound:
        # The listing suffices: reading the nodes of the others takes long, and would only find ledgers
        # that are being created, of which the disk has none.
        named = set(await named_ledgers(store, root, layout, ()))
    verdict = compare(binding, instance_id, given_out, on_disk, named, await store.last_change())
    # The counter of another store says nothing about the ledgers of this one.
    known_below = 0 if verdict is MetadataVerdict.FOREIGN else given_out
    unknown = frozenset(one for one in on_disk if one >= known_below and one not in named)
    return _Judgement(verdict, binding, given_out, unknown)


async def check_metadata(
    store: MetadataStore, root: str, layout: Layout, disk: Disk, directory: Path, on_disk: Sequence[int]
) -> None:
    """Compare as ``bind_metadata`` does, for a bookie that is only read. Writes nothing.

    Raises:
        MetadataLostError: Logs would be missing.
        MetadataError, OSError: The store or the file cannot be read.
    """
    if ACCEPT not in await disk.run(disk.list_directory, directory):
        instance_id = await read_instance_id(store, root) or ""
        judged = await _decide(store, root, layout, disk, directory, on_disk, instance_id)
        judged.check(directory)


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
    """Compare a bookie and its metadata store before the bookie serves; None: no garbage collection.

    None is logged, with the remedy. If cancelled, the next call continues.

    Args:
        directory: The directory of the bookie's files, ``METADATA`` among them.
        on_disk: The bookie's ledgers.
        is_in_place: Called in each round: whether the path of the store still leads to the file that is open.

    Raises:
        MetadataLostError: Logs would be missing. Nothing was changed.
        MetadataError, OSError: The store or the file cannot be read or written.
    """
    path = directory / METADATA
    instance_id = await _instance_id(store, root)
    judged = await _decide(store, root, layout, disk, directory, on_disk, instance_id)
    verdict, binding, given_out = judged.verdict, judged.binding, judged.given_out
    if await disk.run(_remove, disk, directory / ACCEPT):
        log.warning("%s: the metadata is accepted because of the file %s", directory, ACCEPT)
        verdict = MetadataVerdict.ADOPTED
    else:
        judged.check(directory)
    greatest = max(on_disk, default=-1)
    if given_out <= greatest < given_out + _SKIPPED_MAX:
        await skip_ids(store, root, layout, greatest)
        given_out = await ids_given_out(store, root, layout)
    if verdict not in (MetadataVerdict.OWN, MetadataVerdict.ADOPTED):
        log.warning(
            "%s: the space of deleted logs is not freed, because the metadata cannot be trusted to name all"
            " ledgers: %s Restore the right metadata; or, if this one is right and the ledgers that it"
            " does not name may be deleted for good, create an empty file %s. Then open it again",
            directory,
            verdict.value,
            directory / ACCEPT,
        )
        return None
    if verdict is MetadataVerdict.ADOPTED or binding is None:
        binding = MetadataBinding(instance_id, given_out, await store.last_change())
        await disk.run(disk.replace_file, path, encode_binding(binding))
    return BoundMetadata(store, root, layout, is_in_place, disk, path, binding)


_DAMAGED = MetadataBinding("", 0)


def _read(disk: Disk, path: Path) -> MetadataBinding | None:
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return None
    return decode_binding(data) or _DAMAGED


def _remove(disk: Disk, path: Path) -> bool:
    """Remove the file, durably on return; whether it existed."""
    if path.name not in disk.list_directory(path.parent):
        return False
    disk.unlink(path)
    disk.sync_directory(path.parent)
    return True


async def _instance_id(store: MetadataStore, root: str) -> str:
    """The instance id of the store, created if it has none."""
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
