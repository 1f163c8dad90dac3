"""The audit log: one line of JSON for each administrative act.

Inside: the line, the logger ``dlog.audit``, the file. Not inside: which acts are administrative (callers).
Always: an act does not begin if the file cannot be written; a line is one write at the end of the file and is
synced, so that lines of several processes do not mix; a value cannot add a line or a terminal's control
characters, because JSON escapes both.

The environment variable ``DLOG_AUDIT_LOG`` names the file. Without it only the logger gets the lines. A
line::

    {"time": "2026-11-22T14:03:05.123Z", "identity": "alice@host1", "pid": 4711, "act": "delete log",
     "target": "orders", "result": "done"}

``result`` is ``done``, ``cancelled``, ``failed: `` and the error, or ``refused: `` and the reason. After
``cancelled`` and ``failed`` the act may be half done; a refused act did not begin.

Source: our own.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from ledger.errors import AuditError
from ledger.runtime.clock import wall_ms
from ledger.runtime.log_lines import get_logger
from ledger.runtime.own_user import own_user
from ledger.runtime.tasks.task_errors import first_error

FILE_VARIABLE = "DLOG_AUDIT_LOG"
_TEXT_MAX = 2_000  # characters of a target or a result

logger = get_logger("dlog.audit")
logger.addHandler(logging.NullHandler())


@contextmanager
def audited(act: str, target: str, *, identity: str | None = None) -> Iterator[None]:
    """Record an act and its result when the block ends. It blocks for one fsync.

    Args:
        act: The name of the act, such as ``delete log``.
        target: The thing it is done to.
        identity: The peer that asked for it; None for the user of this process.

    Raises:
        AuditError: The file cannot be written. If it is raised when the block begins, nothing was done.
    """
    _check_writable()
    try:
        yield
    except BaseException as exc:
        _record_failure(act, target, identity, exc)
        raise
    _record(act, target, identity, "done")


@asynccontextmanager
async def audited_async(act: str, target: str, *, identity: str | None = None) -> AsyncIterator[None]:
    """Like ``audited``; files are written in a thread. A cancelled act is recorded too."""
    await _off_loop(_check_writable)
    try:
        yield
    except BaseException as exc:
        with trio.CancelScope(shield=True):
            await _off_loop(_record_failure, act, target, identity, exc)
        raise
    with trio.CancelScope(shield=True):
        await _off_loop(_record, act, target, identity, "done")


async def record_refusal(act: str, target: str, *, identity: str, reason: str) -> None:
    """Record an act that was refused to a peer before it began. An error of the file is logged only."""
    try:
        await _off_loop(_record, act, target, identity, f"refused: {reason}")
    except AuditError as exc:
        logger.critical("%s", exc)  # the act stays refused


async def _off_loop(function: Callable[..., None], *arguments: object) -> None:
    # Without a file there is nothing that blocks.
    if os.environ.get(FILE_VARIABLE):
        await trio.to_thread.run_sync(function, *arguments)
    else:
        function(*arguments)


def _record_failure(act: str, target: str, identity: str | None, error: BaseException) -> None:
    cause = first_error(error)
    is_cancelled = isinstance(cause, (trio.Cancelled, KeyboardInterrupt))
    try:
        _record(
            act,
            target,
            identity,
            "cancelled" if is_cancelled else f"failed: {type(cause).__name__}: {cause}",
        )
    except AuditError as exc:
        logger.critical("%s", exc)  # the caller gets the error of the act


def _own_identity() -> str:
    return f"{own_user()}@{socket.gethostname()}"


def _record(act: str, target: str, identity: str | None, result: str) -> None:
    now = datetime.datetime.fromtimestamp(wall_ms() / 1000, datetime.UTC)
    line = json.dumps(
        {
            "time": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "identity": _own_identity() if identity is None else identity[:_TEXT_MAX],
            "pid": os.getpid(),
            "act": act,
            "target": target[:_TEXT_MAX],
            "result": result[:_TEXT_MAX],
        }
    )
    logger.info("%s", line)
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return
    try:
        fd = _open(path)
        try:
            data = f"{line}\n".encode()
            if os.write(fd, data) != len(data):
                raise OSError("the file took a part of the line")
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as exc:
        raise AuditError(
            f"{path}: {act} of {target} ended ({result[:200]}), but the audit log did not take the line:"
            f" {exc.strerror or exc}. Make room for it, and note the act by hand"
        ) from None


def _check_writable() -> None:
    if path := os.environ.get(FILE_VARIABLE):
        try:
            os.close(_open(path))
        except OSError as exc:
            raise AuditError(
                f"{path}: the audit log cannot be opened: {exc.strerror or exc}; nothing was done. Correct"
                f" {FILE_VARIABLE}, or the rights of the file"
            ) from None


def _open(path: str) -> int:
    # A planted link must not lead the lines into another file.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)
