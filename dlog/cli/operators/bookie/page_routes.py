"""The page as routes of a bookie's HTTP server.

Inside: the tie between ``dlog.page``, which knows no bookie, and ``bookie.http``, which knows no log.
Always: the files of the page need no token; everything that they show does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs

from bookie.config.admin_config import AdminConfig
from bookie.http import Admin, AdminReply, AdminRequest, Route, get
from dlog.page import Page, PageReply, open_page
from dlog.page.page import FILES, METRICS_PATH, PATHS


@asynccontextmanager
async def open_page_routes(config: AdminConfig) -> AsyncIterator[Sequence[Route]]:
    """The routes of the page that ``httpPageNamespace`` asks for; none without the key."""
    if config.page_namespace is None:
        yield ()
        return
    async with open_page(config.page_namespace, shows_records=config.page_records) as page:
        yield page_routes(page)


def page_routes(page: Page) -> Sequence[Route]:
    """The files and the questions of a page."""

    async def file(admin: Admin, request: AdminRequest) -> AdminReply:
        reply = page.file(request.path)
        assert reply is not None, request.path  # true because ``files`` below has the paths of ``FILES`` only
        return _reply(reply)

    async def answer(admin: Admin, request: AdminRequest) -> AdminReply:
        return _reply(await page.answer(request.path, request.query))

    async def metrics(admin: Admin, request: AdminRequest) -> AdminReply:
        return _reply(page.metrics())

    files = [attrs.evolve(get(path, file), is_public=True) for path in FILES]
    return (*files, *(get(path, answer) for path in PATHS), get(METRICS_PATH, metrics))


def _reply(reply: PageReply) -> AdminReply:
    return AdminReply(reply.status, reply.body, reply.media_type, reply.headers)
