"""`dlog log retention` and `dlog log retain`: how long the records of a log are kept.

Inside: both commands, and the texts of ages and sizes. They are added to the group of ``log``.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence

import attrs
import click

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.options import gather, json_option, read_only_option, uri_option
from dlog.cli.terminal.output import counted, print_facts, print_json, print_note
from dlog.cli.terminal.signals import run

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_age(text: str) -> datetime.timedelta:
    """An age such as ``36h`` or ``7d``.

    Raises:
        ValueError: The text is none.
    """
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no age; give a number with s, m, h, d or w, such as 7d")
    try:
        return datetime.timedelta(seconds=int(found[1]) * _SECONDS[found[2]])
    except OverflowError:
        raise ValueError(f"{text!r} is longer than {datetime.timedelta.max.days}d") from None


def parse_size(text: str) -> int:
    """Bytes of a size such as ``50GiB`` or ``50G`` (powers of 1,024).

    Raises:
        ValueError: The text is none.
    """
    found = re.fullmatch(r"(\d{1,12})([KMGT]?)(?:i?B)?", text)
    if found is None or int(found[1]) == 0:
        raise ValueError(f"{text!r} is no size; give bytes, or a number with K, M, G or T, such as 50G")
    return int(found[1]) * _BYTES[found[2]]


def age_text(seconds: float) -> str:
    """An age in the largest unit up to days that divides it, as `--age` takes it if the seconds are whole."""
    if not float(seconds).is_integer():
        return f"{seconds:g}s"
    return _in_units(int(seconds), {unit: _SECONDS[unit] for unit in "smhd"})


def size_text(size_bytes: int) -> str:
    """A size as `--size` takes it, in the largest unit that divides it, such as ``50GiB``."""
    text = _in_units(size_bytes, _BYTES)
    return f"{text}B" if text.isdecimal() else f"{text}iB"  # made from a number


def _in_units(number: int, units: Mapping[str, int]) -> str:
    unit = max((unit for unit in units if number % units[unit] == 0), key=lambda unit: units[unit])
    return f"{number // units[unit]}{unit}"


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
