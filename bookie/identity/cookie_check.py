"""Checking that the disks belong to this bookie, before the bookie reads or writes anything else on them.

Inside: the rule that compares configuration, directories and metadata store; creating the directories, their
VERSION files and the cookie's node. Not inside: the text of a cookie (``cookie``); the work before serving on
disks that may lack entries (``startup_check``).
Always: a bookie whose disks and stored cookie disagree does not start, and nothing was changed. A VERSION
file is complete or absent, also after a crash during its write.

| cookie in the store | directories | verdict |
|---|---|---|
| none | all empty, without VERSION | NEW |
| none | VERSION and nothing else; or a first start was interrupted (``DOUBT``) | NEW |
| none | VERSION and data | refused: the bookie was decommissioned, or this is another cluster |
| none | data without VERSION | refused: the owner of the data is unknown |
| agrees | VERSION in all | START |
| agrees except for added directories, if allowed | the added ones are empty | EXPAND |
| agrees | some without VERSION | refused: a disk was lost; REPLACE_LOST if allowed and they are empty |
| it or a VERSION file disagrees | | refused, with both cookies and the differences |

Java writes VERSION without a sync, and it cannot start a bookie that was interrupted between writing its
VERSION files and its node.

Source: LegacyCookieValidation.java, DataIntegrityCookieValidation.java; docs/metadata.md 6.4 to 6.6;
docs/storage-format.md 11.1; apache/bookkeeper#4155, #2305.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bookie.errors import CookieError, DirectoryError
from bookie.identity.cookie import Cookie, decode_cookie, encode_cookie
from bookie.identity.incarnation import INCARNATION
from bookie.storage.config import LOCK
from bookie.storage.dirty_marks import DOUBT
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.catalog.paths import COOKIES, INSTANCE_ID, cookie_path
from ledger.metadata_store.errors import NodeExistsError, NoNodeError
from ledger.metadata_store.store import MetadataStore
from ledger.runtime.audit import audited_async

if TYPE_CHECKING:
    from bookie.disk.disk import Disk

CURRENT = "current"
VERSION_FILE = "VERSION"
_START_FILES = frozenset({VERSION_FILE, DOUBT, INCARNATION, LOCK})  # a directory with only these is empty
_HALF_WRITTEN = frozenset(f"{name}.tmp" for name in _START_FILES - {LOCK})
_OLD_LAYOUT_SUFFIXES = (".txn", ".idx", ".log")


class DirectoryVerdict(enum.Enum):
    """The result of the comparison, if the bookie may start."""

    START = "start"
    NEW = "a new bookie: write VERSION in its directories, then create its cookie"
    EXPAND = "write VERSION in the added directories, then update the cookie"
    REPLACE_LOST = "write VERSION in the empty directories that replace lost ones"


@attrs.frozen
class StoredCookie:
    """A cookie in the metadata store."""

    path: str
    cookie: Cookie
    version: int
    created_ms: int


@attrs.frozen
class DirectoryState:
    """The content of ``current`` in one directory."""

    cookie: Cookie | None  # None: no VERSION file
    is_empty: bool  # except for VERSION, DOUBT, INCARNATION and LOCK
    has_loss_mark: bool = False


@attrs.frozen
class CookieCheck:
    """The verdict and its evidence. Nothing has been written yet."""

    verdict: DirectoryVerdict
    cookie: Cookie
    directories: Mapping[str, DirectoryState]  # by name as configured
    registered: StoredCookie | None
    node_path: str

    @property
    def missing(self) -> list[str]:
        """The directories that have no VERSION file."""
        return [name for name, found in self.directories.items() if found.cookie is None]

    @property
    def paths(self) -> list[Path]:
        """The directory ``current`` of each directory."""
        return [Path(name) / CURRENT for name in self.directories]


def decide(
    mine: Cookie,
    directories: Mapping[str, DirectoryState],
    registered: StoredCookie | None,
    *,
    allow_expansion: bool,
    node_path: str,
    replace_lost: bool = False,
) -> DirectoryVerdict:
    """Compare the three; see the table above.

    Args:
        directories: By name as configured.
        registered: The cookie in the metadata store under this bookie's own id.
        node_path: The path of that cookie, for messages.
        replace_lost: Empty directories may replace lost ones.

    Raises:
        CookieError: They disagree. The message shows the differences and names the remedy.
    """
    for name, found in directories.items():
        if found.cookie is not None:
            check_agreement(
                mine, found.cookie, f"{name}/{CURRENT}/{VERSION_FILE}", allow_expansion=allow_expansion
            )
    if registered is not None:
        check_agreement(mine, registered.cookie, f"node {registered.path}", allow_expansion=allow_expansion)
    missing = [name for name, found in directories.items() if found.cookie is None]
    filled = [name for name in missing if not directories[name].is_empty]
    if registered is None:
        _check_new(mine, directories, filled, node_path)
        return DirectoryVerdict.NEW
    if not missing:
        # An expansion may have been interrupted between writing its directories and its node.
        return DirectoryVerdict.EXPAND if mine.differences(registered.cookie) else DirectoryVerdict.START
    known = {
        *registered.cookie.journal_directories,
        *registered.cookie.ledger_directories,
        *registered.cookie.index_directories,
    }
    if replace_lost and not filled and known.issuperset(missing):
        return DirectoryVerdict.REPLACE_LOST
    if not allow_expansion:
        raise CookieError(
            f"bookie {mine.bookie_id} is registered at {registered.path}, but {_listed(missing)}"
            f" {'has' if len(missing) == 1 else 'have'} no {VERSION_FILE} file: a disk was lost, swapped or"
            " is not mounted. Mount it. If its data is gone, run `dlog bookie replace-disk --config FILE`"
            " with the empty directory in its place: it looks whether the other bookies have its entries, and"
            " copies them back. To give the bookie up, run"
            f" `dlog bookie decommission {mine.bookie_id}`, which copies its ledgers elsewhere and deletes"
            " its cookie. With dataIntegrityStampMissingCookies=true"
            " the bookie starts on the empty directory without that look, and copies"
            " from the other bookies what it may have lost. If the directory is an addition, set"
            f" allowStorageExpansion=true\n{_diff(mine, registered.cookie, f'node {registered.path}')}"
        )
    lost = [name for name in missing if name in known]
    if lost:
        raise CookieError(
            f"bookie {mine.bookie_id}: {_listed(lost)} had entries according to {registered.path}, but has no"
            f" {VERSION_FILE} file: a disk was lost or is not mounted. allowStorageExpansion adds"
            " directories; it does not replace lost ones. `dlog bookie replace-disk --config FILE` does\n"
            + _diff(mine, registered.cookie, f"node {registered.path}")
        )
    if filled:
        raise CookieError(
            f"bookie {mine.bookie_id}: the directories to add, {_listed(filled)}, must be empty, and are not"
        )
    return DirectoryVerdict.EXPAND


def _check_new(
    mine: Cookie, directories: Mapping[str, DirectoryState], filled: list[str], node_path: str
) -> None:
    """Refuse directories that a bookie without a cookie in the metadata store cannot have."""
    is_interrupted = any(found.has_loss_mark for found in directories.values())
    used = [name for name, found in directories.items() if found.cookie is not None and not found.is_empty]
    if used and not is_interrupted:
        stored = directories[used[0]].cookie
        assert stored is not None  # ``used`` has only directories with a cookie
        raise CookieError(
            f"the disks of bookie {mine.bookie_id} have {VERSION_FILE} files, but the metadata store has"
            f" no cookie at {node_path}. If metadataServiceUri names another cluster, correct it. If the"
            " bookie was decommissioned and its cookie deleted, its entries were copied elsewhere: start"
            " it as a new bookie on empty directories\n"
            + _diff(mine, stored, f"{used[0]}/{CURRENT}/{VERSION_FILE}")
        )
    if filled:
        raise CookieError(
            f"bookie {mine.bookie_id} has no cookie at {node_path}, so it is new; but {_listed(filled)}"
            f" {'is' if len(filled) == 1 else 'are'} not empty and without a {VERSION_FILE} file. If the"
            " files belong to another bookie, configure other directories; otherwise remove them"
        )


def check_agreement(mine: Cookie, theirs: Cookie, place: str, *, allow_expansion: bool) -> None:
    """Refuse a configuration that differs from a stored cookie.

    Raises:
        CookieError: They differ. The message shows the differences and both cookies, and names the remedy.
    """
    differences = mine.differences(theirs, allow_expansion=allow_expansion)
    if not differences:
        return
    remedies = []
    if mine.bookie_id != theirs.bookie_id:
        remedies.append(
            f"if this bookie's address changed, keep its old id with bookieId={theirs.bookie_id};"
            " if the directory belongs to another bookie, configure the right one"
        )
    elif mine.instance_id != theirs.instance_id:
        remedies.append(
            "the disks are from another cluster, or from before this cluster was formatted: correct"
            " metadataServiceUri, or give the bookie empty directories"
        )
    else:
        remedies.append("restore the directories in the configuration, in their order")
        if not allow_expansion and not mine.differences(theirs, allow_expansion=True):
            remedies.append("to add empty ledger directories, set allowStorageExpansion=true")
    raise CookieError(
        f"the cookie in {place} differs from this configuration ({'; '.join(differences)}). Remedies:"
        f" {'; or '.join(remedies)}\n{_diff(mine, theirs, place)}"
    )


def _diff(mine: Cookie, theirs: Cookie, place: str) -> str:
    ours, others = (encode_cookie(cookie).decode().splitlines()[1:] for cookie in (mine, theirs))
    lines = [f"--- {place}", "+++ configured"]
    lines += [f"  {line}" if line in ours else f"- {line}" for line in others]
    lines += [f"+ {line}" for line in ours if line not in others]
    return "\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


async def read_instance_id(store: MetadataStore, root: str) -> str | None:
    """The instance id of the cluster; None if the cluster has none.

    Bytes that are not UTF-8 become escapes: then it is another id than every bookie's of the cluster.
    """
    try:
        return (await store.get(f"{root}/{INSTANCE_ID}")).value.decode("utf-8", "backslashreplace")
    except NoNodeError:
        return None


async def check_cookies(
    store: MetadataStore,
    root: str,
    disk: Disk,
    cookie: Cookie,
    *,
    possible_ids: Sequence[str],
    allow_expansion: bool = False,
    replace_lost: bool = False,
) -> CookieCheck:
    """Read all three and compare them. Missing directories are created; nothing else is changed.

    Args:
        cookie: The cookie of the configuration, with the cluster's instance id.
        possible_ids: All ids under which this bookie may have been registered, its own included.

    Raises:
        CookieError: They disagree.
        DirectoryError: A directory cannot be created or read.
    """
    names = list(
        dict.fromkeys((*cookie.journal_directories, *cookie.ledger_directories, *cookie.index_directories))
    )
    node_path = cookie_path(root, cookie.bookie_id)
    registered = None
    await store.sync(root)  # a lagging server may show a deleted cookie, or not yet a new one
    for bookie_id in dict.fromkeys((cookie.bookie_id, *possible_ids)):
        found = await _read_registered(store, cookie_path(root, bookie_id))
        if found is not None:
            check_agreement(cookie, found.cookie, f"node {found.path}", allow_expansion=allow_expansion)
            if bookie_id == cookie.bookie_id:
                registered = found
    directories = {name: await disk.run(_inspect, disk, name) for name in names}
    verdict = decide(
        cookie,
        directories,
        registered,
        allow_expansion=allow_expansion,
        node_path=node_path,
        replace_lost=replace_lost,
    )
    return CookieCheck(verdict, cookie, directories, registered, node_path)


async def write_version_files(disk: Disk, check: CookieCheck) -> None:
    """Write VERSION files as the verdict says. If cancelled, some directories may have theirs.

    Raises:
        DirectoryError: A directory cannot be written.
    """
    data = encode_cookie(check.cookie)
    names = check.directories if check.verdict is DirectoryVerdict.EXPAND else check.missing
    for name in names:
        await disk.run(_write_version_file, disk, name, data)


async def create_cookie(store: MetadataStore, root: str, check: CookieCheck, *, timeout_s: float) -> None:
    """Create a new bookie's cookie in the metadata store. If cancelled, it may exist.

    Args:
        timeout_s: How long to repeat it after a lost connection.

    Raises:
        CookieError: Another process created it.
        ConnectionLostError: The store stayed out of reach. The cookie may exist.
    """
    data = encode_cookie(check.cookie)
    is_repeated = False

    async def create() -> None:
        nonlocal is_repeated
        was_repeated, is_repeated = is_repeated, True
        try:
            await store.create(f"{root}/{COOKIES}", parents=True)
        except NodeExistsError:
            pass
        try:
            await store.create(check.node_path, data)
        except NodeExistsError as exc:
            # The reply to the first attempt may have been lost after the node was created.
            if was_repeated and (await store.get(check.node_path)).value == data:
                return
            raise CookieError(
                f"another process has just written node {check.node_path}: two bookies with the same id are"
                " starting. Stop one, or give it another bookieId"
            ) from exc

    async with audited_async("create cookie", check.node_path):
        await retry_lost_connection(create, timeout_s=timeout_s)


async def _read_registered(store: MetadataStore, path: str) -> StoredCookie | None:
    try:
        node = await store.get(path)
    except NoNodeError:
        return None
    try:
        return StoredCookie(path, decode_cookie(node.value), node.stat.version, node.stat.created_ms)
    except CookieError as exc:
        raise CookieError(
            f"node {path}: {exc}. Restore the node from a VERSION file in one of the bookie's directories"
        ) from exc


def _inspect(disk: Disk, name: str) -> DirectoryState:
    parent = Path(name)
    current = parent / CURRENT
    try:
        disk.make_directory(current)
        old = [
            entry
            for entry in disk.list_directory(parent)
            if entry == VERSION_FILE or entry.endswith(_OLD_LAYOUT_SUFFIXES)
        ]
        entries = set(disk.list_directory(current)) - _HALF_WRITTEN
        data = disk.read_file(current / VERSION_FILE) if VERSION_FILE in entries else None
    except OSError as exc:
        raise DirectoryError(
            f"directory {name} cannot be used: {exc}. Create it, and make it writable for this user"
        ) from exc
    if old:
        raise DirectoryError(
            f"directory {name} has {old[0]} outside of {CURRENT}/, as BookKeeper before 4.1 stored it."
            " Upgrade it with Apache's tools first"
        )
    has_loss_mark = DOUBT in entries
    entries -= _START_FILES
    if data is None:
        return DirectoryState(None, not entries, has_loss_mark)
    try:
        return DirectoryState(decode_cookie(data), not entries, has_loss_mark)
    except CookieError as exc:
        raise CookieError(
            f"{current / VERSION_FILE}: {exc}. Restore the file: all directories of a bookie and its node in"
            " the metadata store have the same text"
        ) from exc


def _write_version_file(disk: Disk, name: str, data: bytes) -> None:
    try:
        disk.replace_file(Path(name) / CURRENT / VERSION_FILE, data)
    except OSError as exc:
        raise DirectoryError(
            f"directory {name} cannot be written: {exc}. Make it writable for this user"
        ) from exc
