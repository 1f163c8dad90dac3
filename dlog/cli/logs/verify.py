"""`dlog verify`: check a whole log, and its hash chain if it has one."""

from __future__ import annotations

from functools import partial

import click

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option, read_only_option, uri_option
from dlog.cli.terminal.output import print_facts, print_json
from dlog.cli.terminal.signals import run
from dlog.format.hash_chain import parse_head


def _checked_head(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    try:
        if text is not None:
            parse_head(text)
    except ValueError as exc:
        raise click.BadParameter(str(exc), context, parameter) from None
    return text


@click.command("verify")
@click.argument("log", shell_complete=log_names)
@uri_option
@click.option(
    "--expect-head",
    metavar="COUNT:HEX",
    callback=_checked_head,
    help="A head that an earlier check printed: the log must still hold the chain up to it.",
)
@json_option("the findings")
@read_only_option
def command(log: str, uri: str, expect_head: str | None, as_json: bool, read_only: bool) -> ExitCode:
    """Read all of LOG and check it, up to its present end.

    It checks the digests of entries, the positions and transaction ids of records, the metadata, and the hash
    chain if writers kept one. The first problem ends the check, with exit code 7. Note the head in another
    place and give it with --expect-head later: then a log that was cut or written again is found too.
    """
    found = run(partial(_verify, uri, log, expect_head, read_only=read_only))
    problem = found.problem
    if as_json:
        print_json(
            {
                "log": found.log,
                "is_sound": found.is_sound,
                "segments": found.segments,
                "entries": found.entries,
                "records": found.records,
                "chained_records": found.chained_records,
                "records_before": found.records_before,
                "head": found.head,
                "problem": None
                if problem is None
                else {"dlsn": str(problem.dlsn), "evidence": problem.evidence},
            }
        )
    else:
        print_facts(
            [
                ("segments", str(found.segments)),
                ("entries", str(found.entries)),
                ("records", str(found.records)),
                ("records in the hash chain", str(found.chained_records)),
                ("head", found.head or "none"),
                ("problem", "none" if problem is None else f"{problem.dlsn}: {problem.evidence}"),
            ]
        )
    return ExitCode.OK if problem is None else ExitCode.DAMAGED


async def _verify(uri: str, log: str, expect_head: str | None, *, read_only: bool) -> dlog.LogVerification:
    async with dlog.open_namespace(uri, read_only=read_only) as namespace:
        return await namespace.repair.verify(log, expect_head=expect_head)
