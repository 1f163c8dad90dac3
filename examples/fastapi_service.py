"""A service on FastAPI: it writes orders to a log, tells its health, and comes back after a failure.

    DLOG_URI=file:///var/lib/shop/log uvicorn --workers 4 --app-dir examples fastapi_service:app

All workers write one log: one of them owns it, and the others forward to it. If it ends, another takes over.
It needs ``pip install fastapi uvicorn``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response

import dlog.aio


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """The namespace and the writer are open as long as the service runs."""
    async with (
        dlog.aio.open_namespace(os.environ["DLOG_URI"]) as namespace,
        namespace.open_writer("orders", create=True, shared=True) as log,
    ):
        yield {"namespace": namespace, "log": log}


app = FastAPI(lifespan=lifespan)


@app.post("/orders")
async def add_order(request: Request) -> dict[str, str]:
    """Store an order; the reply comes when it is on disk."""
    try:
        position = await request.state.log.append(await request.body())
    except dlog.WriteError as error:
        # NOT_WRITTEN: the client may send it again. UNKNOWN: it may be stored already.
        raise HTTPException(503, {"error": str(error), "order": error.outcome.value}) from error
    return {"position": str(position)}


@app.get("/orders")
async def list_orders(request: Request) -> list[str]:
    """The orders so far."""
    await request.state.log.flush()
    async with request.state.namespace.open_reader("orders", follow=False) as reader:
        return [record.payload.decode() async for record in reader]


@app.get("/health")
async def health(request: Request, response: Response) -> dict[str, Any]:
    """For a load balancer: 503 while orders cannot be stored. It sends no request to the log."""
    found = request.state.namespace.health(pending_s_max=5)
    response.status_code = 200 if found.ok else 503
    shown: dict[str, Any] = found.as_dict()
    return shown
