"""Whose disks are these? Asked once, before anything is read from them or written to them.

Inside: the rule that compares configuration, directories and metadata store, and its execution: directories
made, VERSION files stamped, the cookie's node created. Not inside: the text of a cookie (``cookie``); what a
bookie must do before it serves on disks that may lack something (``admission``).
Always: a bookie whose disks and registered cookie disagree does not start, and nothing of it was changed; a
VERSION file is whole or absent, whatever happens while it is written.

| cookie in the store | directories | |
|---|---|---|
| none | none stamped, all empty | NEW |
| none | stamped, nothing else in them; or a first start was interrupted (``DOUBT``) | NEW |
| none | a stamped one with data in it | refused: decommissioned, or another cluster |
| none | one with data, and not stamped | refused: whose are they? |
| fits | all stamped | START |
| fits but for added directories, allowed | those added are empty | EXPAND |
| fits | some without a stamp | refused: a disk was lost; or RESTAMP, if that is allowed and they are empty |
| does not fit, or a stamp does not | | refused, with both cookies and the differences |

Java writes VERSION without a sync, and cannot start a bookie that was interrupted between its VERSION files
and its node.

Source: LegacyCookieValidation.java, DataIntegrityCookieValidation.java; reference on metadata 6.4 to 6.6 and
on bookie storage 6.6; apache/bookkeeper#4155, #2305.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bookie.cookie import Cookie, decode_cookie, encode_cookie
from bookie.doubt import DOUBT
from bookie.errors import CookieError, DirectoryError
from bookie.incarnation import INCARNATION
from ledger.paths import COOKIES, INSTANCE_ID, cookie_path
from namespace.errors import NodeExistsError, NoNodeError
from namespace.store import MetadataStore

if TYPE_CHECKING:
    from bookie.disk import Disk

CURRENT = "current"
VERSION_FILE = "VERSION"
_STAMPS = frozenset({VERSION_FILE, DOUBT, INCARNATION})  # a directory with nothing else has no data
_HALF_WRITTEN = frozenset(f"{name}.tmp" for name in _STAMPS)
_OLD_LAYOUT_SUFFIXES = (".txn", ".idx", ".log")


class Verdict(enum.Enum):
    """What the comparison allows."""

    START = "start"
    NEW = "a new bookie: stamp its directories, then create its cookie"
    EXPAND = "stamp the new directories, then update the cookie"
    RESTAMP = "stamp the empty directories in the place of lost ones"


@attrs.frozen
class Registered:
    """A cookie in the metadata store."""

    path: str
    cookie: Cookie
    version: int
    created_ms: int


@attrs.frozen
class Found:
    """What lies in one directory's ``current``."""

    cookie: Cookie | None  # None: no VERSION file
    is_empty: bool  # but for VERSION, DOUBT and INCARNATION
    is_in_doubt: bool = False  # DOUBT lies there


@attrs.frozen
class Examined:
    """What the comparison found; nothing has been written yet."""

    verdict: Verdict
    cookie: Cookie
    directories: Mapping[str, Found]  # by name as configured
    registered: Registered | None
    node_path: str

    @property
    def missing(self) -> list[str]:
        """The directories that have no VERSION file."""
        return [name for name, found in self.directories.items() if found.cookie is None]

    @property
    def paths(self) -> list[Path]:
        """Where the files of each directory lie."""
        return [Path(name) / CURRENT for name in self.directories]


def decide(
    mine: Cookie,
    directories: Mapping[str, Found],
    registered: Registered | None,
    *,
    allow_expansion: bool,
    node_path: str,
    may_restamp: bool = False,
) -> Verdict:
    """Compare; see the table above.

    Args:
        directories: By name as configured.
        registered: The cookie under this bookie's own id.
        node_path: Where that would be; for messages.
        may_restamp: Empty directories may take the place of lost ones.

    Raises:
        CookieError: They do not agree; says what, and what to do.
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
        is_interrupted = any(found.is_in_doubt for found in directories.values())
        used = [
            name for name, found in directories.items() if found.cookie is not None and not found.is_empty
        ]
        if used and not is_interrupted:
            stamped = directories[used[0]].cookie
            assert stamped is not None
            raise CookieError(
                f"the disks of bookie {mine.bookie_id} are stamped, but the metadata store has no cookie for"
                f" it at {node_path}. Either metadataServiceUri leads to another cluster: correct it. Or the"
                " bookie was decommissioned and its cookie deleted: then its entries were copied elsewhere;"
                " give it empty directories to start it as a new bookie\n"
                + _diff(mine, stamped, f"{used[0]}/{CURRENT}/{VERSION_FILE}")
            )
        if filled:
            raise CookieError(
                f"bookie {mine.bookie_id} has no cookie at {node_path}, so it is new; but {_listed(filled)}"
                f" {'is' if len(filled) == 1 else 'are'} not empty and without a {VERSION_FILE} file. If the"
                " files belong to another bookie, configure other directories; if to nobody, remove them"
            )
        return Verdict.NEW
    if not missing:
        # An expansion may have been interrupted between its directories and its node.
        return Verdict.EXPAND if mine.differences(registered.cookie) else Verdict.START
    known = {
        *registered.cookie.journal_directories,
        *registered.cookie.ledger_directories,
        *registered.cookie.index_directories,
    }
    if may_restamp and not filled and known.issuperset(missing):
        return Verdict.RESTAMP
    if not allow_expansion:
        raise CookieError(
            f"bookie {mine.bookie_id} is registered at {registered.path}, but {_listed(missing)}"
            f" {'has' if len(missing) == 1 else 'have'} no {VERSION_FILE} file: a disk was lost, swapped or"
            " is not mounted. Mount it. If its data is gone, let the cluster copy this bookie's ledgers"
            f" elsewhere, delete the node {registered.path}, and start with empty directories; or set"
            " dataIntegrityStampMissingCookies=true: then it starts on the empty directory, denies nothing it"
            " may have lost, and copies that from the others. If the directory is an addition, set"
            f" allowStorageExpansion=true\n{_diff(mine, registered.cookie, f'node {registered.path}')}"
        )
    lost = [name for name in missing if name in known]
    if lost:
        raise CookieError(
            f"bookie {mine.bookie_id}: {_listed(lost)} had entries according to {registered.path}, but no"
            f" {VERSION_FILE} file is there: a disk was lost or is not mounted. allowStorageExpansion adds"
            " directories, it does not replace lost ones\n"
            + _diff(mine, registered.cookie, f"node {registered.path}")
        )
    if filled:
        raise CookieError(
            f"bookie {mine.bookie_id}: {_listed(filled)} should be added, but must be empty for that"
        )
    return Verdict.EXPAND


def check_agreement(mine: Cookie, theirs: Cookie, place: str, *, allow_expansion: bool) -> None:
    """Refuse to run with a configuration that a stored cookie does not fit.

    Raises:
        CookieError: With the differences, both cookies, and what to do.
    """
    differences = mine.differences(theirs, allow_expansion=allow_expansion)
    if not differences:
        return
    remedies = []
    if mine.bookie_id != theirs.bookie_id:
        remedies.append(
            f"if this bookie's address changed, keep its old name by bookieId={theirs.bookie_id};"
            " if the directory belongs to another bookie, configure the right one"
        )
    elif mine.instance_id != theirs.instance_id:
        remedies.append(
            "the disks are from another cluster, or from before this one was formatted: correct"
            " metadataServiceUri, or give the bookie empty directories"
        )
    else:
        remedies.append("restore the directories in the configuration, in their order")
        if not allow_expansion and not mine.differences(theirs, allow_expansion=True):
            remedies.append("to add empty ledger directories, set allowStorageExpansion=true")
    raise CookieError(
        f"the cookie in {place} is not that of this configuration ({'; '.join(differences)}). What to do:"
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
    """The cluster's instance id; None in a small cluster that was never given one."""
    try:
        return (await store.get(f"{root}/{INSTANCE_ID}")).value.decode()
    except NoNodeError:
        return None


async def examine(
    store: MetadataStore,
    root: str,
    disk: Disk,
    cookie: Cookie,
    *,
    possible_ids: Sequence[str],
    allow_expansion: bool = False,
    may_restamp: bool = False,
) -> Examined:
    """Compare; directories that are not there are made, and nothing else is changed.

    Args:
        cookie: What the configuration says, with the cluster's instance id.
        possible_ids: All names under which this bookie may have been registered, its own included.

    Raises:
        CookieError: They do not agree.
        DirectoryError: A directory cannot be made or read.
    """
    names = list(
        dict.fromkeys((*cookie.journal_directories, *cookie.ledger_directories, *cookie.index_directories))
    )
    node_path = cookie_path(root, cookie.bookie_id)
    registered = None
    await store.sync(root)  # a server that lags would show a cookie that is gone, or none that is there
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
        may_restamp=may_restamp,
    )
    return Examined(verdict, cookie, directories, registered, node_path)


async def stamp(disk: Disk, examined: Examined) -> None:
    """Write VERSION where the verdict wants it; if interrupted, in some directories.

    Raises:
        DirectoryError: A directory cannot be written.
    """
    data = encode_cookie(examined.cookie)
    names = examined.directories if examined.verdict is Verdict.EXPAND else examined.missing
    for name in names:
        await disk.run(_stamp, disk, name, data)


async def register(store: MetadataStore, root: str, examined: Examined) -> None:
    """Create a new bookie's cookie in the metadata store.

    Raises:
        CookieError: Somebody else did.
    """
    try:
        try:
            await store.create(f"{root}/{COOKIES}", parents=True)
        except NodeExistsError:
            pass
        await store.create(examined.node_path, encode_cookie(examined.cookie))
    except NodeExistsError as exc:
        raise CookieError(
            f"node {examined.node_path} was written by somebody else at this moment: two bookies of one name"
            " are being started. Stop one, or give it another bookieId"
        ) from exc


async def _read_registered(store: MetadataStore, path: str) -> Registered | None:
    try:
        node = await store.get(path)
    except NoNodeError:
        return None
    try:
        return Registered(path, decode_cookie(node.value), node.stat.version, node.stat.created_ms)
    except CookieError as exc:
        raise CookieError(
            f"node {path}: {exc}. Restore the node: VERSION files in the bookie's directories have its text"
        ) from exc


def _inspect(disk: Disk, name: str) -> Found:
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
            f"directory {name} cannot be used: {exc.strerror or exc}. Make it, and let this user write there"
        ) from exc
    if old:
        raise DirectoryError(
            f"directory {name} holds {old[0]} itself, not in {CURRENT}/: the disk layout of a BookKeeper"
            " before 4.1. Upgrade it with Apache's tools first"
        )
    is_in_doubt = DOUBT in entries
    entries -= _STAMPS
    if data is None:
        return Found(None, not entries, is_in_doubt)
    try:
        return Found(decode_cookie(data), not entries, is_in_doubt)
    except CookieError as exc:
        raise CookieError(
            f"{current / VERSION_FILE}: {exc}. Restore the file: all directories of a bookie have the same,"
            " and so has its node in the metadata store"
        ) from exc


def _stamp(disk: Disk, name: str, data: bytes) -> None:
    try:
        disk.replace_file(Path(name) / CURRENT / VERSION_FILE, data)
    except OSError as exc:
        raise DirectoryError(
            f"directory {name} cannot be written: {exc.strerror or exc}. Let this user write there"
        ) from exc
