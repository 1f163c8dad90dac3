"""Our side of ``driver`` in a process of its own: requests on stdin, answers and events on stdout, as
``java/interop/Conversation.java`` has them.

Always: requests run beside each other; the end of stdin ends the process, whatever is open being abandoned.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import trio

Answer = Callable[[str, dict[str, Any]], Awaitable[Any]]


def tell(line: dict[str, Any]) -> None:
    """Say something unasked."""
    # One write each: lines of several tasks stay whole.
    os.write(1, json.dumps(line).encode() + b"\n")


async def converse(answer: Answer) -> None:
    """Answer requests, by operation and arguments, until stdin ends; then the process ends here."""
    async with trio.open_nursery() as nursery:
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            nursery.start_soon(_answer, answer, json.loads(line))
        os._exit(0)


async def _answer(answer: Answer, request: dict[str, Any]) -> None:
    request_id, op = request.pop("id"), request.pop("op")
    try:
        result = "pong" if op == "ping" else await answer(op, request)
        tell({"id": request_id, "ok": result})
    except Exception as exc:
        described = {
            "class": type(exc).__name__,
            "code": getattr(exc, "code", None),
            "message": str(exc),
            "stack": traceback.format_exc(),
        }
        tell({"id": request_id, "error": described})
