"""A service on Flask, whose views run in threads: it writes orders to a log and tells its health.

    DLOG_URI=file:///var/lib/shop/log gunicorn --workers 4 --threads 8 --chdir examples flask_service:app

All workers and their threads write one log: one worker owns it, and the others forward to it. Leave out
``--preload``: the log is opened after the fork. Workers of gevent and eventlet are refused. The views of
Django do the same. It needs ``pip install flask gunicorn``.
"""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, Response, jsonify, request

import dlog.blocking

app = Flask(__name__)
# Open as long as the process lives, and closed when Python ends. All threads share them.
namespace = dlog.blocking.open_namespace(os.environ["DLOG_URI"])
log = namespace.open_writer("orders", create=True, shared=True)


@app.post("/orders")
def add_order() -> tuple[Any, int]:
    """Store an order; the reply comes when it is on disk."""
    try:
        position = log.append(request.get_data())
    except dlog.WriteError as error:
        # NOT_WRITTEN: the client may send it again. UNKNOWN: it may be stored already.
        return {"error": str(error), "order": error.outcome.value}, 503
    return {"position": str(position)}, 200


@app.get("/orders")
def list_orders() -> Response:
    """The orders so far."""
    log.flush()
    with namespace.open_reader("orders", follow=False) as reader:
        return jsonify([record.payload.decode() for record in reader])


@app.get("/health")
def health() -> tuple[Any, int]:
    """For a load balancer: 503 while orders cannot be stored. It sends no request to the log."""
    found = namespace.health(pending_s_max=5)
    return found.as_dict(), 200 if found.ok else 503
