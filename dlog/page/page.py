"""The answers of the page: files, and JSON about one namespace and its cluster.

Inside: the paths, the bounds of each answer, the session that is held while people look. Not inside: what an
answer holds (``snapshots``), HTTP, the check of the token.
Always: nothing is changed. Without a look for ``IDLE_S`` there is no session, without a scrape for
``METRICS_IDLE_S`` none of the figures. The same question within ``KEPT_S`` is asked once, so many viewers
cost as much as one. Records are shown only if that was allowed.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from dlog.connect import open_namespace
from dlog.errors import DLogError, InvalidLogNameError, LogNotFoundError
from dlog.namespace_handle import Namespace
from dlog.page.exporter import Exporter
from dlog.page.rates import Rates
from dlog.page.snapshots import BadQuestionError, explained, log_detail, logs, overview, records
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.store import SessionState
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import first_line, report_contained
from ledger.runtime.tasks.task_errors import first_error, only_error
from ledger.runtime.tasks.trio_only import check_trio

log = get_logger(__name__)

IDLE_S = 60.0
METRICS_IDLE_S = 600.0  # Prometheus scrapes more often
KEPT_S = 1.0
FORGOTTEN_S = 10.0
EXPECTED = (DLogError, LedgerError, MetadataError, OSError)
KINDS = ("bookies", "streams")  # of counters
ANSWER_S = 20.0
OPEN_RETRY_S = 1.0
OPEN_S = 2.0  # an answer waits for the namespace; then it says that the metadata store does not reply

NO_REPLY = "the metadata store does not reply. Is ZooKeeper running? The page asks again by itself"

# The page runs no script but its own file, and nothing of it comes from elsewhere.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
FILES = {
    "/page": ("index.html", "text/html; charset=utf-8"),
    "/page/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
QUESTIONS = ("overview", "streams", "stream", "records", "explain")
METRICS_PATH = "/api/page/metrics"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATHS = tuple(f"/api/page/{question}" for question in QUESTIONS)


@attrs.frozen
class PageReply:
    """One reply, for any HTTP server."""

    status: int
    body: bytes
    media_type: str
    headers: Mapping[str, str] = attrs.field(factory=lambda: dict(HEADERS))


@attrs.define
class _Kept:
    lock: trio.Lock = attrs.Factory(trio.Lock)
    at_s: float = float("-inf")
    reply: PageReply | None = None


class Page:
    """The page of one namespace. Made by ``open_page``; on the loop."""

    def __init__(self, uri: str, *, shows_records: bool) -> None:
        self._uri, self._shows_records = uri, shows_records
        self._rates = {kind: Rates() for kind in KINDS}
        self._kept: dict[str, _Kept] = {}
        self._asked_s = float("-inf")
        self._asked = trio.Event()
        self._namespace: Namespace | None = None
        self._failure: str | None = None
        self._changed = trio.Event()
        self._exporter = Exporter(uri)
        self._scraped_s = float("-inf")
        self._scraped = trio.Event()

    def __repr__(self) -> str:
        return f"<Page of {self._uri}>"

    def file(self, path: str) -> PageReply | None:
        """A file of the page; None if there is none. Its content is the same for everyone."""
        if path not in FILES:
            return None
        name, media_type = FILES[path]
        body = importlib.resources.files("dlog.page").joinpath("assets", name).read_bytes()
        return PageReply(200, body, media_type)

    async def answer(self, path: str, query: Mapping[str, str]) -> PageReply:
        """The reply to a question. It may be cancelled at any time.

        An unknown question is 404, a wrong one 400, records that are not allowed 403, and 503 if the
        metadata store or the bookies do not reply in time.
        """
        question = path.removeprefix("/api/page/")
        if question not in QUESTIONS:
            return _error(404, "there is no such question")
        if question == "records" and not self._shows_records:
            return _error(403, "records are not shown; httpPageRecords=true in bk_server.conf allows it")
        key = json.dumps([question, sorted(query.items())])
        if len(key) > 4096:
            return _error(400, "the question is too long")
        self._forget(trio.current_time())
        kept = self._kept.setdefault(key, _Kept())
        async with kept.lock:
            if kept.reply is None or trio.current_time() - kept.at_s >= KEPT_S:
                kept.reply = await self._asked_anew(question, query)
                kept.at_s = trio.current_time()
            return kept.reply

    def metrics(self) -> PageReply:
        """The figures of ``dlog exporter`` as of the last collection. The first scrape begins to collect."""
        self._scraped_s = trio.current_time()
        self._scraped.set()
        return PageReply(200, self._exporter.text().encode(), METRICS_TYPE)

    async def collect(self) -> None:
        """Collect those figures while they are scraped; run it in a task. No failure ends it."""
        while True:
            await self._scraped.wait()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._exporter.run)
                while (left_s := self._scraped_s + METRICS_IDLE_S - trio.current_time()) > 0:  # noqa: ASYNC110
                    await trio.sleep(left_s)
                nursery.cancel_scope.cancel()
            self._exporter.forget()
            self._scraped = trio.Event()

    def _forget(self, now_s: float) -> None:
        for key, kept in list(self._kept.items()):
            if kept.reply is not None and now_s - kept.at_s > FORGOTTEN_S and not kept.lock.locked():
                del self._kept[key]

    async def _asked_anew(self, question: str, query: Mapping[str, str]) -> PageReply:
        try:
            with trio.fail_after(ANSWER_S):
                namespace = await self._opened()
                if namespace is None:
                    return _error(503, self._failure or f"{self._uri}: {NO_REPLY}")
                if namespace.health().session == SessionState.SUSPENDED.value:
                    return _error(503, f"{self._uri}: {NO_REPLY}")
                document = await self._ask(namespace, question, query)
        except trio.TooSlowError:
            return _error(503, f"no answer within {ANSWER_S:g} s")
        except Exception as exc:
            return _refusal(only_error(exc) if isinstance(exc, BaseExceptionGroup) else exc)
        return PageReply(200, json.dumps(document).encode(), "application/json")

    async def _ask(self, namespace: Namespace, question: str, query: Mapping[str, str]) -> dict[str, Any]:
        ask: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
            "overview": lambda: overview(namespace, self._rates_of),
            "streams": lambda: logs(namespace, self._rates_of),
            "stream": lambda: log_detail(namespace, _named(query)),
            "records": lambda: records(namespace, _named(query), query.get("from", "earliest")),
            "explain": lambda: explained(namespace, query.get("kind", "log"), _named(query)),
        }
        document = await ask[question]()
        return document | {"shows_records": self._shows_records}

    def _rates_of(self, kind: str, counters: Mapping[str, int]) -> dict[str, float | None]:
        return self._rates[kind].update(trio.current_time(), counters)

    async def _opened(self) -> Namespace | None:
        """The open namespace; None if it cannot be opened, or not in time."""
        self._asked_s = trio.current_time()
        self._asked.set()
        with trio.move_on_after(OPEN_S):
            while self._namespace is None and self._failure is None:
                await self._changed.wait()
        return self._namespace

    async def keep(self) -> None:
        """Open the namespace while questions are asked; run it in a task. No failure of the page ends it."""
        while True:
            await self._asked.wait()
            try:
                await self._keep_open()
            except* Exception as group:
                reason = first_error(group)
                if isinstance(reason, EXPECTED):
                    log.warning(
                        "the page: %s: %s", self._uri, reason, extra=event("page.failed", error=reason)
                    )
                else:
                    report_contained("page", group)
                self._change(None, first_line(reason) or type(reason).__name__)
                await trio.sleep(OPEN_RETRY_S)
                self._failure = None  # the next question tries again
            if self._left_s() <= 0:
                self._asked = trio.Event()

    async def _keep_open(self) -> None:
        async with open_namespace(self._uri, read_only=True) as namespace:
            self._change(namespace, None)
            try:
                while (left_s := self._left_s()) > 0 and not namespace.context.is_over:  # noqa: ASYNC110
                    await trio.sleep(min(left_s, OPEN_RETRY_S))
            finally:
                self._change(None, None)

    def _left_s(self) -> float:
        return self._asked_s + IDLE_S - trio.current_time()

    def _change(self, namespace: Namespace | None, failure: str | None) -> None:
        self._namespace, self._failure = namespace, failure
        self._changed.set()
        self._changed = trio.Event()


def look(namespace: Namespace) -> Callable[[], Awaitable[dict[str, Any]]]:
    """The function that looks at the cluster and the logs; from its second call on it knows rates.

    It raises what ``overview`` and ``logs`` of ``snapshots`` raise, and may be cancelled at any time.
    """
    rates = {kind: Rates() for kind in KINDS}

    def rates_of(kind: str, counters: Mapping[str, int]) -> dict[str, float | None]:
        return rates[kind].update(trio.current_time(), counters)

    async def once() -> dict[str, Any]:
        return {"overview": await overview(namespace, rates_of), "streams": await logs(namespace, rates_of)}

    return once


@asynccontextmanager
async def open_page(uri: str, *, shows_records: bool = False) -> AsyncIterator[Page]:
    """A page of the namespace at ``uri`` until the end of the block.

    Args:
        shows_records: Answer questions for records and their payloads.
    """
    check_trio("dlog.page.open_page", "the command dlog page")
    page = Page(uri, shows_records=shows_records)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(page.keep)
        nursery.start_soon(page.collect)
        try:
            yield page
        finally:
            nursery.cancel_scope.cancel()


def _named(query: Mapping[str, str]) -> str:
    name = query.get("name", "")
    if not name:
        raise BadQuestionError("the question needs ?name=")
    return name


def _refusal(error: BaseException) -> PageReply:
    match error:
        case BadQuestionError() | InvalidLogNameError():
            return _error(400, str(error))
        case LogNotFoundError():
            return _error(404, str(error))
        case _ if isinstance(error, EXPECTED):
            return _error(503, str(error))
        case _:
            raise error


def _error(status: int, reason: str) -> PageReply:
    return PageReply(status, json.dumps({"error": reason}).encode(), "application/json")
