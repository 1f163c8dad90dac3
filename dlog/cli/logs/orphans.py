"""`dlog log orphans`: the ledgers that no log needs; with --delete, delete them.

Inside: the list, the plan and its confirmation. It is added to the group of ``log``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import partial

import attrs
import click

import dlog
from dlog.cli.terminal.amounts import parse_age
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option, read_only_option, uri_option
from dlog.cli.terminal.output import counted, print_json, print_note, print_table, progress_bar
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run


def _age(context: click.Context, parameter: click.Parameter, text: str) -> datetime.timedelta:
    try:
        return datetime.timedelta() if text == "0" else parse_age(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc), context, parameter) from None


@click.command("orphans")
@click.argument("ledgers", nargs=-1, type=click.IntRange(min=0), metavar="[LEDGER]...")
@uri_option
@click.option(
    "--older-than",
    default="1d",
    show_default=True,
    metavar="AGE",
    callback=_age,
    help="Leave out younger ledgers, such as 36h or 7d.",
)
@click.option("--delete", is_flag=True, help="Delete the ledgers, after a question.")
@click.option("--yes", is_flag=True, help="With --delete: delete without asking.")
@json_option("the ledgers, or the outcomes")
@read_only_option
def orphans(
    ledgers: Sequence[int],
    uri: str,
    older_than: datetime.timedelta,
    delete: bool,
    yes: bool,
    as_json: bool,
    read_only: bool,
) -> ExitCode:
    """List the ledgers that no log needs; with LEDGERs, only these.

    They are left by programs that were killed, and by nodes that were deleted by hand. --delete deletes those
    that were made for logs of this namespace. Others are deleted only if their ids are given: make sure that
    no other application needs them.
    """
    if yes and not delete:
        raise click.UsageError("--yes needs --delete")
    if delete and read_only:
        raise click.UsageError("--delete excludes --read-only")
    found = run(partial(_find, uri, older_than, read_only))
    if ledgers:
        found = [each for each in found if each.ledger_id in ledgers]
    else:
        ours = [each for each in found if each.origin is dlog.OrphanOrigin.THIS_NAMESPACE]
        found = ours if delete else found
    if not delete or not as_json:
        _print(found, as_json)
    if not delete:
        return ExitCode.OK
    # An id that is no orphan continues: its outcome tells the reason.
    wanted = list(ledgers) or [each.ledger_id for each in found]
    if wanted and not yes:
        confirm(f"Delete {counted(len(wanted), 'ledger')} permanently?")
    outcomes = run(partial(_delete, uri, wanted, older_than)) if wanted else []
    if as_json:
        print_json([attrs.asdict(each) for each in outcomes])
    for each in outcomes:
        if not each.is_deleted:
            print_note(f"ledger {each.ledger_id} was kept: {each.reason}")
    print_note(f"deleted {sum(each.is_deleted for each in outcomes)} orphan ledgers")
    return ExitCode.OK if all(each.is_deleted for each in outcomes) else ExitCode.FAILED


async def _find(uri: str, older_than: datetime.timedelta, read_only: bool) -> list[dlog.OrphanLedger]:
    async with dlog.open_namespace(uri, read_only=read_only) as namespace:
        with progress_bar("ledgers", None) as update:
            return await namespace.repair.find_orphans(older_than=older_than, on_progress=_shown(update))


async def _delete(
    uri: str, wanted: Sequence[int], older_than: datetime.timedelta
) -> list[dlog.OrphanOutcome]:
    async with dlog.open_namespace(uri) as namespace:
        return await namespace.repair.delete_orphans(wanted, older_than=older_than)


def _shown(update: Callable[[int], None]) -> Callable[[int, int], None]:
    return lambda done, _total: update(done)


def _print(found: Sequence[dlog.OrphanLedger], as_json: bool) -> None:
    if as_json:
        print_json([attrs.asdict(each) | {"origin": each.origin.name.lower()} for each in found])
    elif found:
        columns = ["ledger", "origin", "log", "namespace", "age", "bytes"]
        print_table(
            columns,
            [
                [
                    str(each.ledger_id),
                    each.origin.value,
                    each.log or "-",
                    each.namespace or "-",
                    str(datetime.timedelta(seconds=int(each.age_s))),
                    str(each.length_bytes) if each.is_closed else "-",
                ]
                for each in found
            ],
        )
    else:
        print_note("no orphan ledgers")
