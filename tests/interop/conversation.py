"""The process side of ``driver`` in Python: requests on stdin, replies and events on stdout.

The form is that of ``java/interop/Conversation.java``.
Always: requests run concurrently. The end of stdin ends the process at once; open handles are abandoned.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import trio

Perform = Callable[[str, dict[str, Any]], Awaitable[Any]]


def send(line: dict[str, Any]) -> None:
    """Write a reply or an event."""
    # One write for each line, so that lines of several tasks do not mix.
    os.write(1, json.dumps(line).encode() + b"\n")


async def converse(perform: Perform) -> None:
    """Perform requests, given by operation and arguments, until stdin ends; then the process ends."""
    async with trio.open_nursery() as nursery:
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            nursery.start_soon(_perform, perform, json.loads(line))
        os._exit(0)


async def _perform(perform: Perform, request: dict[str, Any]) -> None:
    request_id, op = request.pop("id"), request.pop("op")
    try:
        result = "pong" if op == "ping" else await perform(op, request)
        send({"id": request_id, "ok": result})
    except Exception as exc:
        described = {
            "class": type(exc).__name__,
            "code": getattr(exc, "code", None),
            "message": str(exc),
            "stack": traceback.format_exc(),
        }
        send({"id": request_id, "error": described})
