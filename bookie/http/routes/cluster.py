"""The bookies of the cluster: which are registered, their space, the state of the whole.

Source: ListBookiesService.java, ListBookieInfoService.java, ClusterInfoService.java,
BookieSanityService.java.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import trio

from bookie.cluster.access import ClusterAccess
from bookie.http.admin import Admin
from bookie.http.messages import AdminReply, AdminRequest, NotFoundError, json_reply
from bookie.http.router import get
from ledger.catalog.paths import available_path, readonly_path
from ledger.catalog.service_info import decode_service_info
from ledger.client import BookieSpace, LedgerClient
from ledger.errors import BookieError, LedgerError
from ledger.fragments.registered import read_cookie_owners, read_registered
from ledger.ledger_spec import LedgerSpec
from ledger.metadata_store.errors import NoNodeError
from ledger.replication import current_auditor
from ledger.runtime.tasks.task_errors import for_each

REQUESTS_AT_ONCE = 16
SANITY_ENTRIES = 10
SANITY_S = 15.0
_UNITS = ("", "KB", "MB", "GB", "TB")


async def list_bookies(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET list_bookies``: id to host name, or to null without ``print_hostnames``."""
    cluster = admin.need_cluster()
    registered = await read_registered(cluster.session(), cluster.root)
    is_read_only = request.query.get("type") == "ro"
    bookies = sorted(registered.readonly if is_read_only else registered.writable)
    if not request.is_true("print_hostnames"):
        return json_reply(dict.fromkeys(bookies))
    return json_reply({bookie: await _host_of(cluster, bookie, is_read_only) for bookie in bookies})


async def list_bookie_info(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET list_bookie_info``: the disk space that each registered bookie reports, and the sums."""
    cluster = admin.need_cluster()
    found: dict[str, BookieSpace | None] = {}
    async with admin.clients, cluster.open_client() as client:
        registered = await read_registered(cluster.session(), cluster.root)
        limiter = trio.CapacityLimiter(REQUESTS_AT_ONCE)

        async def ask(bookie: str) -> None:
            found[bookie] = None
            async with limiter:
                with contextlib.suppress(BookieError):
                    found[bookie] = await client.bookie_space(bookie)

        await for_each(ask, sorted(registered.all))
    if not found:
        raise NotFoundError("no bookie is registered")
    return json_reply(space_texts(found))


def space_texts(spaces: dict[str, BookieSpace | None]) -> dict[str, str]:
    """The texts of ``list_bookie_info``; None for a bookie that did not reply, which the sums leave out."""
    texts = {
        bookie: ": {no reply}," if space is None else f": {_space_text([space])},"
        for bookie, space in sorted(spaces.items())
    }
    texts["ClusterInfo: "] = _space_text([space for space in spaces.values() if space is not None])
    return texts


def _space_text(spaces: Iterable[BookieSpace]) -> str:
    free = sum(space.free_bytes for space in spaces)
    total = sum(space.total_bytes for space in spaces)
    return f"{{Free: {free}{_readable(free)}, Total: {total}{_readable(total)}}}"


def _readable(size_bytes: int) -> str:
    """In units of 1000, three digits after the point, cut off and not rounded."""
    power = 0
    while size_bytes >= 1000 ** (power + 1) and power < len(_UNITS) - 1:
        power += 1
    if not power:
        return ""
    thousandths = size_bytes * 1000 // 1000**power
    digits = f"{thousandths // 1000}.{thousandths % 1000:03d}".rstrip("0").rstrip(".")
    return f"({digits}{_UNITS[power]})"


async def cluster_info(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET cluster_info``: the auditor, the switch, marked ledgers, and how many bookies there are."""
    cluster = admin.need_cluster()
    store, marks = cluster.session(), cluster.marks
    registered = await read_registered(store, cluster.root)
    cookies = await read_cookie_owners(store, cluster.root)
    auditor = await current_auditor(store, cluster.root)
    is_marked = False
    async with contextlib.aclosing(marks.marked_ids()) as marked:
        async for _ in marked:
            is_marked = True
            break
    return json_reply(
        {
            "auditorElected": auditor is not None,
            "auditorId": auditor or "",
            "clusterUnderReplicated": is_marked,
            "ledgerReplicationEnabled": await marks.is_enabled(),
            "totalBookiesCount": len(cookies),
            "writableBookiesCount": len(registered.writable),
            "readonlyBookiesCount": len(registered.readonly),
            "unavailableBookiesCount": len(cookies - registered.all),
        }
    )


async def sanity(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET sanity``: write a ledger to this bookie alone, read it, delete it; nothing if it is read-only."""
    cluster = admin.need_cluster()
    if not admin.service.rights.writable:
        return json_reply({"passed": True, "readOnly": True})
    passed = False
    with trio.move_on_after(SANITY_S):
        async with admin.clients, cluster.open_client() as client:
            try:
                passed = await _write_and_read(client, admin.bookie_id)
            except LedgerError:
                passed = False
    return json_reply({"passed": passed, "readOnly": False})


async def _write_and_read(client: LedgerClient, bookie: str) -> bool:
    handle = await client.create_from(
        LedgerSpec(ensemble_size=1, write_quorum=1, ack_quorum=1, password=None, bookies=(bookie,))
    )
    try:
        payloads = [b"sanity %d" % number for number in range(SANITY_ENTRIES)]
        for payload in payloads:
            await handle.append(payload)
        await handle.close()
        async with await client.open(handle.ledger_id, password=None, recover=False) as reader:
            entries = await reader.read(0, SANITY_ENTRIES - 1)
        is_here = {name for each in handle.metadata.ensembles for name in each.bookies} == {bookie}
        return is_here and [entry.payload for entry in entries] == payloads
    finally:
        with trio.move_on_after(SANITY_S) as scope:
            scope.shield = True
            await client.delete(handle.ledger_id)


async def _host_of(cluster: ClusterAccess, bookie: str, is_read_only: bool) -> str:
    path = (readonly_path if is_read_only else available_path)(cluster.root, bookie)
    with contextlib.suppress(NoNodeError, LedgerError):
        rpc = decode_service_info((await cluster.session().get(path)).value).rpc
        if rpc is not None:
            return rpc.host
    return bookie.rpartition(":")[0] or bookie


ROUTES = (
    get("/api/v1/bookie/list_bookies", list_bookies),
    get("/api/v1/bookie/list_bookie_info", list_bookie_info),
    get("/api/v1/bookie/cluster_info", cluster_info),
    get("/api/v1/bookie/sanity", sanity),
)
