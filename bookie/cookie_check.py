"""Whose disks are these? Asked once, before anything is read from them or written to them.

Inside: the rule that compares configuration, directories and metadata store, and its execution: directories
made, VERSION files stamped, the cookie's node created. Not inside: the text of a cookie (``cookie``).
Always: a bookie whose disks and registered cookie disagree does not start, and nothing of it was changed; a
VERSION file is whole or absent, whatever happens while it is written.

Java writes VERSION without a sync, and cannot start a bookie that was interrupted between its VERSION files
and its node. Here a bookie whose directories hold nothing but fitting VERSION files counts as new.

Source: LegacyCookieValidation.java; reference on metadata 6.4 and 6.6; apache/bookkeeper#4155, #2305.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from bookie.cookie import Cookie, decode_cookie, encode_cookie
from bookie.errors import CookieError, DirectoryError
from ledger.paths import COOKIES, INSTANCE_ID, cookie_path
from namespace.errors import BadVersionError, NodeExistsError, NoNodeError
from namespace.store import MetadataStore

if TYPE_CHECKING:
    from bookie.disk import Disk

CURRENT = "current"
VERSION_FILE = "VERSION"
_OLD_LAYOUT_SUFFIXES = (".txn", ".idx", ".log")

log = logging.getLogger(__name__)


class Verdict(enum.Enum):
    """What the comparison allows."""

    START = "start"
    NEW = "a new bookie: stamp its directories, then create its cookie"
    EXPAND = "stamp the new directories, then update the cookie"


@attrs.frozen
class Registered:
    """A cookie in the metadata store."""

    path: str
    cookie: Cookie
    version: int


@attrs.frozen
class Found:
    """What lies in one directory's ``current``."""

    cookie: Cookie | None  # None: no VERSION file
    is_empty: bool  # but for the VERSION file


def decide(
    mine: Cookie,
    directories: Mapping[str, Found],
    registered: Registered | None,
    *,
    allow_expansion: bool,
    node_path: str,
) -> Verdict:
    """Compare; the table of the metadata reference, 6.4.

    Args:
        directories: By name as configured.
        registered: The cookie under this bookie's own id.
        node_path: Where that would be; for messages.

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
        if not missing:
            if all(found.is_empty for found in directories.values()):
                return Verdict.NEW  # interrupted at its first start
            raise CookieError(
                f"the disks of bookie {mine.bookie_id} are stamped, but the metadata store has no cookie for"
                f" it at {node_path}. Either metadataServiceUri leads to another cluster: correct it. Or the"
                " bookie was decommissioned and its cookie deleted: then its entries were copied elsewhere;"
                " give it empty directories to start it as a new bookie"
            )
        if filled:
            raise CookieError(
                f"bookie {mine.bookie_id} has no cookie at {node_path}, so it is new; but {_listed(filled)}"
                f" {'is' if len(filled) == 1 else 'are'} not empty and without a {VERSION_FILE} file. If the"
                " files belong to another bookie, configure other directories; if to nobody, remove them"
            )
        return Verdict.NEW
    if not missing:
        return Verdict.START
    if not allow_expansion:
        raise CookieError(
            f"bookie {mine.bookie_id} is registered at {registered.path}, but {_listed(missing)}"
            f" {'has' if len(missing) == 1 else 'have'} no {VERSION_FILE} file: a disk was lost, swapped or"
            " is not mounted. Mount it. If its data is gone, let the cluster copy this bookie's ledgers"
            f" elsewhere, delete the node {registered.path}, and start with empty directories. If the"
            " directory is an addition, set allowStorageExpansion=true"
        )
    known = {
        *registered.cookie.journal_directories,
        *registered.cookie.ledger_directories,
        *registered.cookie.index_directories,
    }
    lost = [name for name in missing if name in known]
    if lost:
        raise CookieError(
            f"bookie {mine.bookie_id}: {_listed(lost)} had entries according to {registered.path}, but no"
            f" {VERSION_FILE} file is there: a disk was lost or is not mounted. allowStorageExpansion adds"
            " directories, it does not replace lost ones"
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


async def check_cookies(
    store: MetadataStore,
    root: str,
    disk: Disk,
    cookie: Cookie,
    *,
    possible_ids: Sequence[str],
    allow_expansion: bool = False,
) -> Verdict:
    """Make sure of the disks; afterwards every directory and the metadata store carry this cookie.

    If cancelled, or stopped by a crash, some directories may be stamped; the next start goes on from there.

    Args:
        cookie: What the configuration says, with the cluster's instance id.
        possible_ids: All names under which this bookie may have been registered, its own included.

    Raises:
        CookieError: They do not agree.
        DirectoryError: A directory cannot be made, read or written.
    """
    names = list(
        dict.fromkeys((*cookie.journal_directories, *cookie.ledger_directories, *cookie.index_directories))
    )
    node_path = cookie_path(root, cookie.bookie_id)
    registered = None
    for bookie_id in dict.fromkeys((cookie.bookie_id, *possible_ids)):
        found = await _read_registered(store, cookie_path(root, bookie_id))
        if found is not None:
            check_agreement(cookie, found.cookie, f"node {found.path}", allow_expansion=allow_expansion)
            if bookie_id == cookie.bookie_id:
                registered = found
    directories = {name: await disk.run(_inspect, disk, name) for name in names}
    verdict = decide(cookie, directories, registered, allow_expansion=allow_expansion, node_path=node_path)
    if verdict is not Verdict.START:
        data = encode_cookie(cookie)
        for name in names:
            if verdict is Verdict.EXPAND or directories[name].cookie is None:
                await disk.run(_stamp, disk, name, data)
        await _register(store, root, node_path, data, registered)
        log.info("cookie of bookie %s: %s", cookie.bookie_id, verdict.value)
    return verdict


async def _read_registered(store: MetadataStore, path: str) -> Registered | None:
    try:
        node = await store.get(path)
    except NoNodeError:
        return None
    try:
        return Registered(path, decode_cookie(node.value), node.stat.version)
    except CookieError as exc:
        raise CookieError(f"node {path}: {exc}") from exc


async def _register(
    store: MetadataStore, root: str, path: str, data: bytes, registered: Registered | None
) -> None:
    try:
        if registered is not None:
            await store.put(path, data, expected=registered.version)
            return
        try:
            await store.create(f"{root}/{COOKIES}", parents=True)
        except NodeExistsError:
            pass
        await store.create(path, data)
    except (NodeExistsError, BadVersionError) as exc:
        raise CookieError(
            f"node {path} was written by somebody else at this moment: two bookies of one name are being"
            " started. Stop one, or give it another bookieId"
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
        entries = set(disk.list_directory(current)) - {f"{VERSION_FILE}.tmp"}
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
    entries.discard(VERSION_FILE)
    if data is None:
        return Found(None, not entries)
    try:
        return Found(decode_cookie(data), not entries)
    except CookieError as exc:
        raise CookieError(f"{current / VERSION_FILE}: {exc}") from exc


def _stamp(disk: Disk, name: str, data: bytes) -> None:
    try:
        disk.replace_file(Path(name) / CURRENT / VERSION_FILE, data)
    except OSError as exc:
        raise DirectoryError(
            f"directory {name} cannot be written: {exc.strerror or exc}. Let this user write there"
        ) from exc
