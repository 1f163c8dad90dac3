"""Disks whose cluster was restored from a backup of its metadata: an operator vouches for them.

A restore creates the nodes of the cookies again, so no disk has the incarnation of its cookie. Each bookie
would take its disks for old copies and put all its ledgers in limbo. If all bookies do that, no ledger
that was open at the backup can ever be recovered, because no bookie denies an entry.

Inside: the check that the disks agree with each other and with the cookie, and the new number. Not inside:
the start of the bookie, which looks for every other loss (``startup_check``).
Always: only in a restored cluster, and only before the bookie's first start in it.

Source: our own; docs/metadata.md 18.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookie.disk.disk import Disk
from bookie.errors import CookieError
from bookie.identity.cookie import Cookie, encode_cookie
from bookie.identity.cookie_check import DirectoryVerdict, check_cookies
from bookie.identity.incarnation import Incarnation, IncarnationNumber
from bookie.storage import dirty_marks
from ledger.catalog.cluster_backup import check_restored
from ledger.metadata_store.store import MetadataStore


async def accept_restored_disks(
    store: MetadataStore, root: str, disk: Disk, cookie: Cookie, possible_ids: Sequence[str]
) -> None:
    """Give the disks of a stopped bookie the number of its restored cookie. The caller holds their locks.

    The disks must be those that the bookie had when it last ran: an older copy would not be recognised, and
    would deny entries that were acknowledged. If cancelled, some directories may have the number; the next
    call continues.

    Args:
        cookie: The cookie of the configuration, with the cluster's instance id.
        possible_ids: All ids under which this bookie may have been registered.

    Raises:
        ClusterNotFoundError: The cluster was not restored, or is released already. Nothing was changed.
        RestoreRefusedError: The restore is not complete. Nothing was changed.
        CookieError: The disks do not agree with the cookie or with each other, or the bookie has started
            since the restore. Nothing was changed.
        OSError: A directory cannot be read or written.
    """
    await check_restored(store, root)
    check = await check_cookies(store, root, disk, cookie, possible_ids=possible_ids, allow_expansion=False)
    if check.verdict is not DirectoryVerdict.START or check.registered is None:
        raise CookieError(f"bookie {cookie.bookie_id} is not as it was: {check.verdict.value}")
    registered = IncarnationNumber(check.registered.created_ms, check.registered.version)
    incarnation = Incarnation(disk, check.paths, check.node_path, encode_cookie(check.cookie))
    noted = await disk.run(dirty_marks.read_loss_mark, disk, check.paths)
    if noted is not None:
        raise CookieError(f"bookie {cookie.bookie_id} may lack entries already: {noted}. Start it as it is")
    found = await disk.run(incarnation.read)
    if registered.version > 0:
        raise CookieError(
            f"bookie {cookie.bookie_id} has started since the restore, so its ledgers are in limbo already;"
            " they leave it when the other bookies serve"
        )
    numbers = {number for number in found.values() if number not in (None, registered)}
    created = {number.created_ms for number in numbers if number is not None}
    versions = {number.version for number in numbers if number is not None}
    if None in found.values() or len(created) > 1 or (versions and max(versions) - min(versions) > 1):
        shown = "; ".join(f"{name}: {number or 'none'}" for name, number in found.items())
        raise CookieError(
            f"the directories of bookie {cookie.bookie_id} are of different times, so one may be an old copy:"
            f" {shown}. Start the bookie as it is: it then copies what it lacks"
        )
    await disk.run(incarnation.write, registered)
