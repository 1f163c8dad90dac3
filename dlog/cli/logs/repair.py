"""`dlog log check|repair|recover`: find and mend contradictions in the metadata of logs.

Inside: the report, the plan and its confirmation. They are added to the group of ``log``.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import click

import dlog
from dlog.cli.terminal.completion import log_names
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option, read_only_option, uri_option
from dlog.cli.terminal.output import counted, print_json, print_note, progress_bar
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run


@click.command("check")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", shell_complete=log_names)
@uri_option
@click.option("--metadata-only", is_flag=True, help="Read no ledger: look at the nodes only.")
@json_option("the findings")
@read_only_option
def check(logs: Sequence[str], uri: str, metadata_only: bool, as_json: bool, read_only: bool) -> ExitCode:
    """Look for contradictions in the segments of logs.

    It finds missing and doubled segments, wrong greatest numbers, missing ledgers, and completed segments
    whose last record is not that of their ledger. The exit code is 7 if a log needs a repair. `dlog verify`
    reads all records instead.
    """

    async def go() -> list[dlog.LogCheck]:
        async with dlog.open_namespace(uri, read_only=read_only) as namespace:
            return [await _check(namespace, log, read_ledgers=not metadata_only) for log in logs]

    found = run(go)
    if as_json:
        print_json([_document(each) for each in found])
    else:
        for each in found:
            _print(each)
    return ExitCode.OK if all(each.is_consistent for each in found) else ExitCode.DAMAGED


@click.command("repair")
@click.argument("log", shell_complete=log_names)
@uri_option
@click.option("--yes", is_flag=True, help="Repair without asking.")
@click.option("--wait", "lock_timeout_s", default=0.0, metavar="SECONDS", help="Wait for the log's lock.")
@json_option("the repairs, and the findings that are left")
def repair(log: str, uri: str, yes: bool, lock_timeout_s: float, as_json: bool) -> ExitCode:
    """Mend the segments of LOG, as `dlog log check` proposes.

    It prints the plan and asks. LOG must have no writer. No record is deleted. The exit code is 7 if a
    finding is left that cannot be repaired.
    """

    async def look() -> dlog.LogCheck:
        async with dlog.open_namespace(uri) as namespace:
            return await _check(namespace, log, read_ledgers=True)

    async def mend() -> dlog.LogRepair:
        async with dlog.open_namespace(uri) as namespace:
            return await namespace.repair.apply(log, lock_timeout_s=lock_timeout_s)

    planned = run(look)
    if not as_json:
        _print(planned)
    if not any(each.repair for each in planned.findings):
        if as_json:
            print_json({"log": log, "done": [], "left": _document(planned)})
        print_note(f"{log}: nothing to repair")
        return ExitCode.OK if planned.is_consistent else ExitCode.DAMAGED
    if not yes:
        confirm(f"Repair {log} like this?")
    result = run(mend)
    if as_json:
        done = [_finding(each) for each in result.done]
        print_json({"log": log, "done": done, "left": _document(result.left)})
    for each in result.done:
        print_note(f"{log}: done: {each.repair}")
    for each in result.left.findings:
        print_note(f"{log}: left: {each.node}: {each.kind.value}: {each.evidence}")
    return ExitCode.OK if result.left.is_consistent else ExitCode.DAMAGED


@click.command("recover")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", shell_complete=log_names)
@uri_option
@click.option("--wait", "lock_timeout_s", default=0.0, metavar="SECONDS", help="Wait for the locks.")
@json_option("the segments that are completed now")
def recover(logs: Sequence[str], uri: str, lock_timeout_s: float, as_json: bool) -> None:
    """Complete the segments that dead writers of logs left in progress, without writing a record."""

    async def go() -> dict[str, list[dlog.SegmentDescription]]:
        async with dlog.open_namespace(uri) as namespace:
            return {log: await namespace.repair.recover(log, lock_timeout_s=lock_timeout_s) for log in logs}

    completed = run(partial(go))
    for log, segments in completed.items():
        records = sum(each.record_count or 0 for each in segments)
        print_note(f"{log}: completed {counted(len(segments), 'segment')} with {counted(records, 'record')}")
    if as_json:
        print_json(
            {
                log: [
                    {"segment_seqno": each.segment_seqno, "record_count": each.record_count}
                    for each in segments
                ]
                for log, segments in completed.items()
            }
        )


@click.command("heal")
@click.argument("logs", nargs=-1, required=True, metavar="LOG...", shell_complete=log_names)
@uri_option
@click.option(
    "--keep",
    "keep_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Keep the old ledgers so long, for readers that have them open.  [default: heal.keep_s, a day]",
)
@json_option("the healed segments")
def heal(logs: Sequence[str], uri: str, keep_s: float | None, as_json: bool) -> None:
    """Give all replicas to segments of logs that began on fewer bookies than asked.

    `dlog log check` lists them. Each is copied into a new ledger. No position changes, and writers and
    readers continue. An interrupted call is repeated. Exit code 6: there are too few bookies.
    """
    keep = None if keep_s is None else datetime.timedelta(seconds=keep_s)

    async def go() -> dict[str, list[dlog.SegmentDescription]]:
        found = {}
        async with dlog.open_namespace(uri) as namespace:
            for log in logs:
                found[log] = await namespace.repair.heal(log, keep=keep)
                print_note(f"{log}: healed {counted(len(found[log]), 'segment')}")
        return found

    healed = run(go)
    if as_json:
        print_json(
            {
                log: [{"segment_seqno": each.segment_seqno, "ledger_id": each.ledger_id} for each in segments]
                for log, segments in healed.items()
            }
        )


async def _check(namespace: dlog.Namespace, log: str, *, read_ledgers: bool) -> dlog.LogCheck:
    with progress_bar(f"{log}: ledgers", None) as update:
        return await namespace.repair.check(
            log, read_ledgers=read_ledgers, on_progress=lambda done, _total: update(done)
        )


def _print(found: dlog.LogCheck) -> None:
    print_note(f"{found.log}: {counted(found.segments, 'segment')}, writer: {found.writer or 'none'}")
    for each in found.findings:
        level = "wrong" if each.is_error else "note"
        action = f"repair: {each.repair}" if each.repair else f"not repairable: {each.advice}"
        print_note(f"  {level}: {each.node}: {each.kind.value}: {each.evidence}\n    {action}")
    if not found.findings:
        print_note("  consistent")


def _document(found: dlog.LogCheck) -> dict[str, Any]:
    return {
        "log": found.log,
        "is_consistent": found.is_consistent,
        "segments": found.segments,
        "writer": found.writer,
        "findings": [_finding(each) for each in found.findings],
    }


def _finding(finding: dlog.Finding) -> dict[str, Any]:
    shown = attrs.asdict(finding, filter=lambda attribute, _value: attribute.name != "step")
    return shown | {"kind": finding.kind.name.lower()}
