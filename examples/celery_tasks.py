"""Tasks of Celery that write to a log.

    DLOG_URI=file:///var/lib/shop/log celery --app celery_tasks worker --concurrency 4

All worker processes write one log: one of them owns it, and the others forward to it. Celery delivers a task
again after a crash, and ``store`` is repeated if its outcome is unknown: then the log has the order twice,
under one task id, by which a reader drops the second. It needs ``pip install celery``.
"""

from __future__ import annotations

import json
import os
from functools import cache
from typing import Any

from celery import Celery

import dlog.blocking

app = Celery("orders", broker=os.environ.get("CELERY_BROKER", "memory://"))
app.conf.task_acks_late = True  # a task whose worker dies is delivered again


@cache
def writer() -> dlog.blocking.LogWriter:
    """The writer of this process, opened by its first task: after the fork of a worker."""
    namespace = dlog.blocking.open_namespace(os.environ["DLOG_URI"])
    return namespace.open_writer("orders", create=True, shared=True)


@app.task(bind=True, autoretry_for=(dlog.WriteError,), retry_backoff=True)
def store(self: Any, order: str) -> str:
    """Store an order; return its position when it is on disk."""
    return str(writer().append(json.dumps({"task": self.request.id, "order": order}).encode()))
