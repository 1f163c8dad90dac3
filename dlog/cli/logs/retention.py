"""`dlog log retention` and `dlog log retain`: how long the records of a log are kept.

Inside: both commands, and the texts of ages and sizes. They are added to the group of ``log``.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import attrs
import click

import dlog
from dlog.cli.terminal.amounts import age_text, parse_age, parse_size, size_text
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.options import gather, json_option, read_only_option, uri_option
from dlog.cli.terminal.output import counted, print_facts, print_json, print_note
from dlog.cli.terminal.signals import run


def _age_option(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> datetime.timedelta | None:
    try:
        return None if text is None else parse_age(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc), context, parameter) from None


def _size_option(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else parse_size(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc), context, parameter) from None


@attrs.frozen
class _Limits:
    """The options that set the retention."""

    age: datetime.timedelta | None
    size: int | None
    keep_unread: bool
    forever: bool


@click.command("retention")
@click.argument("log", shell_complete=log_names)
@uri_option
@click.option("--age", metavar="AGE", callback=_age_option, help="Keep records so long, such as 7d or 36h.")
@click.option("--size", metavar="SIZE", callback=_size_option, help="Keep so many bytes, such as 50G.")
@click.option("--keep-unread", is_flag=True, help="Keep records that a cursor has not consumed.")
@click.option("--forever", is_flag=True, help="Keep records until they are truncated.")
@read_only_option
@json_option("the retention")
@gather(limits=_Limits)
def retention(log: str, uri: str, limits: _Limits, as_json: bool, read_only: bool) -> None:
    """Show how long LOG keeps records; with options, set it.

    The log's writers obey: they give up whole segments. With --keep-unread alone, LOG keeps exactly the
    records that some cursor has not consumed.
    """
    forever = limits.forever
    is_limited = limits.age is not None or limits.size is not None or limits.keep_unread
    if is_limited and forever:
        raise click.UsageError("--forever excludes --age, --size and --keep-unread")
    if read_only and (is_limited or forever):
        raise click.UsageError("--read-only shows the retention; it excludes the options that set it")
    wanted = None
    if is_limited:
        wanted = dlog.Retention.of(age=limits.age, size_bytes=limits.size, keep_unread=limits.keep_unread)

    async def go() -> dlog.Retention | None:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            if is_limited or forever:
                await namespace.retention.set(log, wanted)
            return await namespace.retention.get(log)

    found = run(go)
    if as_json:
        print_json(None if found is None else attrs.asdict(found))
    elif found is None:
        print_note(f"{log} keeps records until they are truncated")
    else:
        print_facts(_facts(found))


def _facts(found: dlog.Retention) -> list[tuple[str, str]]:
    return [
        ("age", "-" if found.age_s is None else age_text(found.age_s)),
        ("size", "-" if found.size_bytes is None else size_text(found.size_bytes)),
        ("keep unread", "yes" if found.keep_unread else "no"),
    ]


@click.command("retain")
@click.argument("logs", nargs=-1, metavar="[LOG]...", shell_complete=log_names)
@uri_option
@click.option("--all", "all_logs", is_flag=True, help="All logs of the namespace.")
@json_option("the number of deleted segments of each log")
def retain(logs: Sequence[str], uri: str, all_logs: bool, as_json: bool) -> None:
    """Give up now the records that the retention of logs does not keep.

    Writers do so by themselves; this is for logs without a writer. Truncated segments are deleted, too.
    """
    if bool(logs) == all_logs:
        raise click.UsageError("give the names of logs, or --all")

    async def go() -> dict[str, int]:
        deleted = {}
        async with dlog.open_namespace(uri) as namespace:
            for log in await namespace.list_logs() if all_logs else logs:
                deleted[log] = len(await namespace.retention.apply(log))
                print_note(f"{log}: deleted {counted(deleted[log], 'segment')}")
        return deleted

    counts = run(go)
    if as_json:
        print_json(counts)
