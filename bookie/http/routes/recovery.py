"""Auto-recovery of the cluster: the switch, marked ledgers, the auditor, and taking a bookie out.

Always: at most one recovery of a bookie runs in this process; it continues in the background, and its end is
logged and shown by ``GET autorecovery/bookie``.

Source: AutoRecoveryStatusService.java, ListUnderReplicatedLedgerService.java, WhoIsAuditorService.java,
TriggerAuditService.java, LostBookieRecoveryDelayService.java, RecoveryBookieService.java,
DecommissionService.java.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from bookie.http.admin import Admin, RecoveryState
from bookie.http.messages import (
    AdminReply,
    AdminRequest,
    BadRequestError,
    Method,
    NotFoundError,
    UnavailableError,
    json_reply,
    text_reply,
)
from bookie.http.router import Route, get, put
from ledger.catalog.paths import check_bookie_id
from ledger.catalog.replication_nodes import Mark
from ledger.decommission.bookie_recovery import Evacuation, recover_bookies
from ledger.decommission.removal import check_not_registered
from ledger.errors import BookieInUseError, LedgerError
from ledger.metadata_store.errors import MetadataError
from ledger.replication import current_auditor
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import first_line, report_contained
from ledger.runtime.tasks.task_errors import first_error

MARKS_MAX = 10_000  # in one reply
DELAY_S_MAX = 2**31 - 1

log = get_logger(__name__)


async def status(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET autorecovery/status``: the switch of the whole cluster."""
    return json_reply({"enabled": await admin.need_cluster().marks.is_enabled()})


async def switch(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT autorecovery/status``: set the switch; the reply shows it."""
    wanted = request.query.get("enabled", "").lower()
    if wanted not in ("true", "false"):
        raise BadRequestError("expected ?enabled=true or ?enabled=false")
    await admin.need_cluster().marks.switch(on=wanted == "true")
    return await status(admin, request)


async def list_marked(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET list_under_replicated_ledger``: ids; with ``printmissingreplica`` id to bookies; 404 if none."""
    marks = admin.need_cluster().marks
    named, unnamed = request.query.get("missingreplica"), request.query.get("excludingmissingreplica")
    shows_bookies = _is_set(request, "printmissingreplica")
    found: dict[int, Sequence[str]] = {}
    async with contextlib.aclosing(marks.marked_ids()) as marked:
        async for ledger_id in marked:
            mark: Mark | None = Mark((), 0)
            if shows_bookies or named or unnamed:
                mark = await marks.get(ledger_id)
            if mark is None or not is_wanted(mark, named, unnamed):
                continue
            if len(found) == MARKS_MAX:
                raise UnavailableError(
                    f"more than {MARKS_MAX} ledgers are marked; use `dlog ledger underreplicated`"
                )
            found[ledger_id] = mark.replicas
    if not found:
        raise NotFoundError("No under replicated ledgers found")
    if not shows_bookies:
        return json_reply(list(found))
    return json_reply({str(ledger_id): list(bookies) for ledger_id, bookies in found.items()})


def is_wanted(mark: Mark, named: str | None, unnamed: str | None) -> bool:
    """True if the mark names the one bookie and not the other one; None stands for no condition."""
    return (not named or named in mark.replicas) and (not unnamed or unnamed not in mark.replicas)


async def who_is_auditor(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET who_is_auditor``: 404 if no program is a candidate."""
    cluster = admin.need_cluster()
    auditor = await current_auditor(cluster.session(), cluster.root)
    if auditor is None:
        raise NotFoundError("No auditor found")
    return text_reply(f"Auditor: {auditor}")


async def trigger_audit(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT trigger_audit``: the auditor looks for lost bookies now, because the delay is written again."""
    marks = admin.need_cluster().marks
    if not await marks.is_enabled():
        raise BadRequestError("auto-recovery is switched off: nothing is audited")
    await marks.set_recovery_delay((await marks.recovery_delay()).seconds)
    return text_reply("Success trigger audit.")


async def delay(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET lost_bookie_recovery_delay``: 404 if it was never set."""
    found = await admin.need_cluster().marks.recovery_delay()
    if found.version is None:
        raise NotFoundError("lostBookieRecoveryDelay was never set")
    return text_reply(f"lostBookieRecoveryDelay value: {found.seconds}")


async def set_delay(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT lost_bookie_recovery_delay``: of the whole cluster."""
    seconds = request.body.get("delay_seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= DELAY_S_MAX:
        raise BadRequestError('expected {"delay_seconds": NUMBER}, a whole number of at least 0')
    await admin.need_cluster().marks.set_recovery_delay(seconds)
    return text_reply(f"Success set lostBookieRecoveryDelay to {seconds}")


async def recover(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT autorecovery/bookie``: move the entries of the first ``bookie_src``, in the background."""
    sources = request.body.get("bookie_src")
    if not isinstance(sources, list) or not sources:
        raise BadRequestError('expected {"bookie_src": ["ID"], "delete_cookie": false}')
    bookie = _bookie_id(sources[0])
    _begin(admin, bookie, delete_cookie=_is_true(request, "delete_cookie"), must_be_stopped=False)
    return text_reply("Success send recovery request command.")


async def recovery(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET autorecovery/bookie``: the last recovery that was begun here; 404 if there was none."""
    if admin.recovery is None:
        raise NotFoundError("this process has begun no recovery")
    state = admin.recovery
    return json_reply(
        {
            "bookies": list(state.bookies),
            "running": state.is_running,
            "moved": state.moved,
            "left": state.left,
            "error": state.error,
        }
    )


async def decommission(admin: Admin, request: AdminRequest) -> AdminReply:
    """``PUT decommission``: as ``recover``, for a bookie that is stopped."""
    cluster = admin.need_cluster()
    bookie = _bookie_id(request.body.get("bookie_src"))
    try:
        await check_not_registered(cluster.session(), cluster.root, bookie)
    except BookieInUseError as exc:
        raise BadRequestError(str(exc)) from exc
    _begin(admin, bookie, delete_cookie=_is_true(request, "delete_cookie"), must_be_stopped=True)
    return text_reply(f"Success send decommission Bookie command {bookie}")


def _begin(admin: Admin, bookie: str, *, delete_cookie: bool, must_be_stopped: bool) -> None:
    cluster, tasks = admin.need_cluster(), admin.tasks
    if tasks is None or admin.is_stopping:
        raise UnavailableError("the bookie is stopping")
    if admin.recovery is not None and admin.recovery.is_running:
        raise UnavailableError(f"the recovery of {', '.join(admin.recovery.bookies)} is not finished")
    state = admin.recovery = RecoveryState((bookie,))

    async def run() -> None:
        async with (
            cluster.open_session() as (store, client),
            contextlib.aclosing(
                recover_bookies(
                    client.context,
                    store,
                    (bookie,),
                    Evacuation(delete_cookies=delete_cookie, must_be_stopped=must_be_stopped),
                )
            ) as results,
        ):
            async for one in results:
                if one.is_done:
                    state.moved += 1
                else:
                    state.left.append(one.ledger_id)
                    log.warning("recovery of %s: ledger %d is left: %s", bookie, one.ledger_id, one.reason)

    tasks.start_soon(_run_logged, run, state)


async def _run_logged(run: Callable[[], Any], state: RecoveryState) -> None:
    """Run a recovery to its end. Its failure is logged and ends nothing else."""
    names = ", ".join(state.bookies)
    try:
        await run()
        log.info("recovery of %s: %d ledgers moved, %d left", names, state.moved, len(state.left))
    except* (LedgerError, MetadataError, OSError) as expected:
        state.error = str(first_error(expected)) or repr(expected)
        log.error("recovery of %s failed: %s", names, state.error)
    except* Exception as group:
        report_contained("recovery of a bookie", group)
        state.error = first_line(first_error(group)) or repr(group)
    finally:
        state.is_running = False


def _bookie_id(value: object) -> str:
    if not isinstance(value, str):
        raise BadRequestError("bookie_src: expected the id of a bookie")
    try:
        check_bookie_id(value)
    except LedgerError as exc:
        raise BadRequestError(str(exc)) from exc
    return value


def _is_true(request: AdminRequest, name: str) -> bool:
    """True for the boolean and for the text, which Apache's two routes expect one of."""
    value = request.body.get(name, False)
    if value not in (True, False, "true", "false"):
        raise BadRequestError(f"{name}: expected true or false, not {value!r}")
    return value in (True, "true")


def _is_set(request: AdminRequest, name: str) -> bool:
    """True if the query has the name, with any value but false."""
    return request.query.get(name, "false").lower() != "false"


ROUTES = (
    Route("/api/v1/autorecovery/status", {Method.GET: status, Method.PUT: switch}),
    get("/api/v1/autorecovery/list_under_replicated_ledger", list_marked),
    get("/api/v1/autorecovery/who_is_auditor", who_is_auditor),
    put("/api/v1/autorecovery/trigger_audit", trigger_audit),
    Route("/api/v1/autorecovery/lost_bookie_recovery_delay", {Method.GET: delay, Method.PUT: set_delay}),
    Route("/api/v1/autorecovery/bookie", {Method.GET: recovery, Method.PUT: recover}),
    put("/api/v1/autorecovery/decommission", decommission),
)
