"""Completing command lines in bash and zsh: the names of logs, and how a shell asks for them.

Inside: listing names for a half-written argument, the reader of bash's line, the silence around both.
Not inside: the scripts of the shells (``dlog.cli.setup.completion``); commands and options, which click
completes.
Always: nothing is created, locked or written, because the namespace is opened read-only; a shell gets its
answer in bounded time, and no error; a name that a shell would not take as plain text is not offered,
because other clients choose names.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

VARIABLE = "_DLOG_COMPLETE"  # set by the scripts
LIMIT_S = 2.0
NAMES_MAX = 1000

# Quoting is left out: "$(...)" in a name would run when the user sends the line. Bash also divides words at
# ":" and "=".
_PLAIN = re.compile(r"[A-Za-z0-9_/.+%][A-Za-z0-9_/.+%-]*")


class BashLine(BashComplete):
    """bash's command line as it is written. bash's own words are divided at the colons of a URI."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the cursor, and the one that is completed."""
        line = os.environ.get("COMP_LINE", "")
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], incomplete


add_completion_class(BashLine)


def is_asked() -> bool:
    """True if a shell asks for completions, and this call is no command."""
    return bool(os.environ.get(VARIABLE))


def complete(program: click.Command) -> None:
    """Answer the shell, without a word about errors, and end the process.

    Its threads may still wait for hosts.
    """
    logging.disable(logging.CRITICAL)
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with suppress(BaseException):
        program.main((), prog_name="dlog", complete_var=VARIABLE, standalone_mode=False, obj={})
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)


def log_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The logs of the command's namespace that begin with the incomplete name; none if that fails."""
    given = context.find_root().params
    for name in ("uri", "config", "zk_security", "bookie_security"):
        if given.get(name):
            os.environ[f"DLOG_{name.upper()}"] = given[name]  # as the command itself would do
    with suppress(Exception):
        # An option without a value has no default while a line is completed.
        is_default = context.get_parameter_source("uri") in (None, ParameterSource.DEFAULT)
        uri = _default_uri() if is_default else context.params["uri"]
        found = _within(LIMIT_S, partial(_listed, uri, incomplete.rpartition("/")[0])) or []
        already = context.params.get(parameter.name or "") or ()
        names = [
            name
            for name in found
            if name.startswith(incomplete) and name not in already and _PLAIN.fullmatch(name)
        ]
        return [CompletionItem(name) for name in names[:NAMES_MAX]]
    return []


def _default_uri() -> str:
    from dlog.cli.terminal.options import namespace_uri

    return namespace_uri()


def _listed(uri: str, parent: str) -> list[str]:
    import trio

    import dlog

    async def listed() -> list[str]:
        async with dlog.open_namespace(uri, read_only=True) as namespace:
            return await namespace.list_logs(parent)

    return trio.run(listed)


def _within(limit_s: float, call: Callable[[], list[str]]) -> list[str] | None:
    """The result of a call; None if it fails or takes longer. It then continues in its thread."""
    results: list[Any] = []

    def run() -> None:
        with suppress(BaseException):
            results.append(call())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    return results[0] if results else None
