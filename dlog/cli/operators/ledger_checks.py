"""`dlog ledger recover|check|export|import|diff`: close, check, save and restore single ledgers.

Inside: options and output. Not inside: recovery (``ledger.recovery``), the check (``ledger.fragments``).
Always: check, export and diff change nothing; import creates a ledger's node or changes it only under the
version that was read, and refuses metadata of another format than the file says; the password of a ledger is
in an exported file only, which only its owner may read.

Source: BookKeeper, LedgerMetaDataCommand.java (``-dumptofile``, ``-restorefromfile``, ``-update``),
LedgerChecker.java.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import click

from dlog.cli.operators.autorecovery import opened_cluster
from dlog.cli.operators.service import Service, open_ledgers, service_options
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import counted, print_json, print_note, print_table
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from ledger.catalog.metadata_codec import decode_metadata, encode_metadata
from ledger.errors import LedgerError, LedgerExistsError, MetadataFormatError, NoSuchLedgerError
from ledger.fragments.ledger_check import LedgerCheck, last_entry_of
from ledger.fragments.registered import read_registered
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import BadVersionError, NodeExistsError, NoNodeError
from ledger.runtime.audit import audited_async

LEDGER_ID = click.IntRange(min=0)
_ledger_argument = click.argument("ledger_id", metavar="LEDGER", type=LEDGER_ID)
_file_argument = click.argument(
    "file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)


@click.command("recover")
@_ledger_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@service_options
@json_option("the end of the ledger")
def recover(ledger_id: int, yes: bool, service: Service, as_json: bool) -> None:
    """Fence the writer of LEDGER and close the ledger at its last entry. A closed ledger stays as it is."""
    if not yes:
        confirm(f"Close ledger {ledger_id}, so that its writer fails?")

    async def go() -> LedgerMetadata:
        async with open_ledgers(service) as ledgers:
            async with audited_async("recover ledger", f"{ledgers.ledgers_root} {ledger_id}"):
                reader = await ledgers.client.open(ledger_id, password=None, recover=True)
                await reader.close()
            return await ledgers.client.metadata(ledger_id)

    found = run(go)
    if as_json:
        print_json(
            {
                "ledger_id": ledger_id,
                "state": found.state.name,
                "last_entry_id": found.last_entry_id,
                "length_bytes": found.length_bytes,
            }
        )
    else:
        print_note(f"ledger {ledger_id} is closed; its last entry is {found.last_entry_id}")


@click.command("check")
@click.argument("ledger_ids", metavar="[LEDGER...]", type=LEDGER_ID, nargs=-1)
@click.option(
    "--verify",
    "percentage",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    metavar="PERCENT",
    help="The share of the entries to read, besides the first and the last of each fragment.",
)
@service_options
@json_option("the fragments with missing replicas")
def check(ledger_ids: tuple[int, ...], percentage: int, service: Service, as_json: bool) -> int:
    """Read from every replica of LEDGER, or of all ledgers; list the replicas that are missing.

    Each bookie is also asked which entries it has, so that holes are found; of a ledger that is being
    written, up to what is confirmed. Digests are verified. Nothing is changed or marked. Exit code 1 if a
    replica is missing, or a ledger could not be checked.
    """

    async def go() -> tuple[int, list[dict[str, Any]]]:
        found: list[dict[str, Any]] = []
        async with opened_cluster(service) as opened:
            context = opened.deployment.client.context
            checker = LedgerCheck(context, percentage=percentage, asks_lists=True)
            ids = list(ledger_ids) or await context.catalog.ledger_ids()
            for ledger_id in ids:
                try:
                    current = await context.catalog.get_newest(ledger_id)
                    registered = await read_registered(opened.deployment.store, context.catalog.root)
                    lac = await last_entry_of(context, current)
                    result = await checker.find(current, lac, registered)
                except NoSuchLedgerError:
                    if ledger_ids:
                        raise
                    continue  # deleted since the listing
                except LedgerError as exc:
                    found.append(_problem(ledger_id, None, None, [], str(exc)))
                    continue
                found += [
                    _problem(ledger_id, one.fragment.first, one.fragment.last, list(one.bookies), None)
                    for one in result.bad
                ]
                if result.has_doubts:
                    found.append(
                        _problem(ledger_id, None, None, [], "a bookie was overloaded or refused a read")
                    )
        return len(ids), found

    count, found = run(go)
    if as_json:
        print_json({"ledgers": count, "problems": found})
    else:
        rows = [
            [
                str(one["ledger_id"]),
                "-" if one["first_entry"] is None else f"{one['first_entry']}-{one['last_entry']}",
                one["reason"] or " ".join(one["bookies"]),
            ]
            for one in found
        ]
        if rows:
            print_table(["ledger", "entries", "missing on"], rows)
        print_note(f"{counted(count, 'ledger')} checked, {counted(len(found), 'problem')}")
    return ExitCode.FAILED if found else ExitCode.OK


@click.command("export")
@_ledger_argument
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@service_options
def export(ledger_id: int, file: Path, service: Service) -> None:
    """Write the metadata of LEDGER to the new FILE, with the bytes that are stored.

    Metadata of format version 1 and 2 are text. FILE has the ledger's password, so only its owner may read
    it. Exit code 4 if FILE exists.
    """

    async def go() -> bytes:
        async with open_ledgers(service, read_only=True) as ledgers:
            path = ledgers.client.context.catalog.path(ledger_id)
            try:
                return (await ledgers.store.get(path)).value
            except NoNodeError:
                raise NoSuchLedgerError(ledger_id) from None

    data = run(go)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.UsageError(f"{file} exists") from None
    with open(descriptor, "wb") as out:
        out.write(data)
    print_note(f"wrote the metadata of ledger {ledger_id} to {file}")


@click.command("import")
@_ledger_argument
@_file_argument
@click.option("--update", is_flag=True, help="Replace the metadata of an existing ledger.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@service_options
def import_(ledger_id: int, file: Path, update: bool, yes: bool, service: Service) -> None:
    """Store the metadata in FILE, which `dlog ledger export` or Apache's shell wrote, for LEDGER.

    Without --update the ledger must not exist. The entries are not touched: wrong metadata hide them, so
    compare with `dlog ledger diff` first. Stop the writer of the ledger and auto-recovery before.
    """
    data = _read(file)
    if not yes:
        confirm(f"Store the metadata in {file} for ledger {ledger_id}?")

    async def go() -> None:
        async with open_ledgers(service) as ledgers:
            path, store = ledgers.client.context.catalog.path(ledger_id), ledgers.store
            async with audited_async("import ledger metadata", path):
                if not update:
                    try:
                        await store.create(path, data, parents=True)
                    except NodeExistsError:
                        raise LedgerExistsError(ledger_id) from None
                    return
                try:
                    node = await store.get(path)
                    await store.put(path, data, expected=node.stat.version)
                except NoNodeError:
                    raise NoSuchLedgerError(ledger_id) from None
                except BadVersionError:
                    raise LedgerError(
                        f"ledger {ledger_id} changed meanwhile; nothing was stored. Stop its writer"
                    ) from None

    run(go)
    print_note(f"stored the metadata of ledger {ledger_id}")


@click.command("diff")
@_ledger_argument
@_file_argument
@service_options
def diff(ledger_id: int, file: Path, service: Service) -> int:
    """Compare the metadata of LEDGER with those in FILE, as text. Exit code 1 if they differ."""
    wanted = decode_metadata(_read(file))

    async def go() -> LedgerMetadata:
        async with open_ledgers(service, read_only=True) as ledgers:
            return await ledgers.client.metadata(ledger_id)

    stored = run(go)
    lines = list(
        difflib.unified_diff(
            _lines(stored), _lines(wanted), f"ledger {ledger_id}", str(file), lineterm="", n=1_000
        )
    )
    for line in lines:
        print(line)
    if stored.password != wanted.password:
        lines.append("the passwords differ")
        print_note("the passwords differ")
    return ExitCode.FAILED if lines else ExitCode.OK


def _lines(metadata: LedgerMetadata) -> list[str]:
    """The metadata as lines for people; the password only as whether it is set."""
    facts: list[tuple[str, object]] = [
        ("format version", metadata.format_version),
        ("state", metadata.state.name),
        ("ensemble size", metadata.ensemble_size),
        ("write quorum", metadata.write_quorum),
        ("ack quorum", metadata.ack_quorum),
        ("last entry", metadata.last_entry_id if metadata.is_closed else "-"),
        ("length", metadata.length_bytes if metadata.is_closed else "-"),
        ("digest type", metadata.digest_type.name),
        ("ctime", metadata.ctime_ms),
        ("has password", bool(metadata.password)),
    ]
    facts += [
        (f"bookies from entry {one.first_entry_id}", " ".join(one.bookies)) for one in metadata.ensembles
    ]
    facts += [(f"custom {name}", value.hex()) for name, value in sorted(metadata.custom.items())]
    return [f"{name}: {value}" for name, value in facts]


def _read(file: Path) -> bytes:
    data = file.read_bytes()
    try:
        encode_metadata(decode_metadata(data))
    except MetadataFormatError as exc:
        raise click.UsageError(f"{file}: {exc}") from exc
    return data


def _problem(
    ledger_id: int, first: int | None, last: int | None, bookies: list[str], reason: str | None
) -> dict[str, Any]:
    return {
        "ledger_id": ledger_id,
        "first_entry": first,
        "last_entry": last,
        "bookies": bookies,
        "reason": reason,
    }
