"""The disks of the bookie: marks, files, the cookie, the index.

Source: GetLastLogMarkService.java, ListDiskFilesService.java, ExpandStorageService.java,
TriggerLocationCompactService.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bookie.disk.disk import Disk
from bookie.http.admin import Admin
from bookie.http.messages import (
    AdminReply,
    AdminRequest,
    BadRequestError,
    Method,
    UnavailableError,
    json_reply,
    text_reply,
)
from bookie.http.router import Route, get, put
from bookie.identity.cookie_check import DirectoryVerdict, check_cookies
from bookie.storage.config import CURRENT

FILES_MAX = 100_000  # names in one reply
_KINDS = {"journal": "journal files", "entrylog": "entrylog files", "index": "index files"}
_SUFFIXES = {"journal": ".txn", "entrylog": ".log", "index": ".idx"}
_INDEX_LEVELS = 2  # of directories above an index file


async def last_log_mark(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET last_log_mark``: the mark of each journal, below which nothing is replayed."""
    return json_reply(
        {
            f"LastLogMark: Journal Id - {mark.journal_id}({mark.journal_id:x}.txn)": f"Pos - {mark.offset}"
            for mark in admin.service.storage.checkpointer.marks
        }
    )


async def list_disk_file(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET list_disk_file``: kind to the names of its files, each with a tab after it."""
    disk, storage = admin.need_disk(), admin.need_config().storage
    directories = {
        "journal": storage.journal_directories,
        "entrylog": storage.ledger_directories,
        "index": storage.index_directories or storage.ledger_directories,
    }
    wanted = request.query.get("file_type", "")
    kinds = [wanted] if wanted in _KINDS else list(_KINDS)
    shown = {}
    for kind in kinds:
        paths = [directory / CURRENT for directory in directories[kind]]
        names = await disk.run(_files, disk, paths, _SUFFIXES[kind], _INDEX_LEVELS if kind == "index" else 0)
        shown[_KINDS[kind]] = "".join(f"{name}\t" for name in names)
    return json_reply(shown)


def _files(disk: Disk, directories: Sequence[Path], suffix: str, levels: int) -> list[str]:
    names: list[str] = []
    todo = [(directory, levels) for directory in reversed(directories)]
    while todo:
        directory, below = todo.pop()
        try:
            found = sorted(disk.list_directory(directory))
        except (FileNotFoundError, NotADirectoryError):
            continue  # a file, or deleted meanwhile
        names += [name for name in found if name.endswith(suffix)]
        if len(names) > FILES_MAX:
            raise UnavailableError(f"there are more than {FILES_MAX} files")
        if below:
            # The directories of index files have one or two hexadecimal digits.
            todo += [(directory / name, below - 1) for name in reversed(found) if len(name) <= 2]
    return names


async def expand_storage(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT expand_storage``: compare the directories in use with their cookies, with additions allowed."""
    cluster, disk = admin.need_cluster(), admin.need_disk()
    if admin.cookie is None:
        raise UnavailableError("this bookie has no cookie")
    found = await check_cookies(
        cluster.session(),
        cluster.root,
        disk,
        admin.cookie,
        possible_ids=(admin.cookie.bookie_id,),
        allow_expansion=True,
    )
    if found.verdict is not DirectoryVerdict.START:
        raise BadRequestError(
            f"{', '.join(found.missing) or 'the cookie'} is not as at the start. Set"
            " allowStorageExpansion=true and restart the bookie"
        )
    return text_reply("Success expand storage")


async def location_compaction(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET entry_location_compact``: no index is compacted by hand, so none is listed."""
    return json_reply({})


async def compact_locations(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT entry_location_compact``: refused, since the index compacts itself."""
    raise BadRequestError("the index of this bookie compacts itself; there is nothing to trigger")


ROUTES = (
    get("/api/v1/bookie/last_log_mark", last_log_mark),
    get("/api/v1/bookie/list_disk_file", list_disk_file),
    put("/api/v1/bookie/expand_storage", expand_storage),
    Route(
        "/api/v1/bookie/entry_location_compact",
        {Method.GET: location_compaction, Method.PUT: compact_locations},
    ),
)
