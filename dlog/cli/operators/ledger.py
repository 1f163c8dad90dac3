"""`dlog ledger list|show|read|simpletest|delete`: the ledgers of Apache's bookies or ours.

Always: list, show and read change nothing; only `read --recover` fences and closes a ledger. The password
of a ledger comes from its metadata and is never printed.

Source: BookKeeper, LedgerMetaDataCommand.java, ReadLedgerCommand.java, SimpleTestCommand.java.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import attrs
import click
import trio

from dlog.cli.operators.autorecovery import underreplicated
from dlog.cli.operators.ledger_checks import check, diff, export, import_, recover
from dlog.cli.operators.service import Service, open_ledgers, service_options
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option, read_only_option
from dlog.cli.terminal.output import (
    moment_text,
    payload_lines,
    print_facts,
    print_json,
    print_note,
    print_table,
    progress_bar,
    write_out,
)
from dlog.cli.terminal.position import payload_document
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from dlog.explain.collecting import racks_of
from ledger.client import LedgerClient
from ledger.deploy import Deployment
from ledger.errors import LedgerError
from ledger.metadata import LedgerMetadata
from ledger.runtime.audit import audited_async

LEDGER_ID = click.IntRange(min=0)
TEST_ENTRY_BYTES = 100
TEST_BATCH_ENTRIES = 256


class SimpleTestError(LedgerError):
    """The bookies returned other entries than the written ones. The ledger is kept as evidence."""


@click.group("ledger", cls=CommandGroup)
def command() -> None:
    """List, show, read, test and delete ledgers of Apache's bookies or ours."""


@command.command("list")
@service_options
@json_option("the ids")
@read_only_option
def list_(service: Service, as_json: bool, read_only: bool) -> None:
    """List the ids of all ledgers."""

    async def go() -> list[int]:
        async with open_ledgers(service, read_only=read_only) as ledgers:
            return await ledgers.client.ledger_ids()

    ids = run(go)
    if as_json:
        print_json(ids)
    else:
        for ledger_id in ids:
            print(ledger_id)


@command.command("show")
@click.argument("ledger_id", metavar="LEDGER", type=LEDGER_ID)
@service_options
@json_option("the metadata")
@read_only_option
def show(ledger_id: int, service: Service, as_json: bool, read_only: bool) -> None:
    """Show the metadata of LEDGER: state, last entry, replicas with their racks where these are known."""

    async def go() -> tuple[LedgerMetadata, dict[str, str]]:
        async with open_ledgers(service, read_only=read_only) as ledgers:
            metadata = await ledgers.client.metadata(ledger_id)
            members = {bookie for ensemble in metadata.ensembles for bookie in ensemble.bookies}
            return metadata, await racks_of(ledgers.client, members)

    metadata, racks = run(go)
    document = metadata_document(ledger_id, metadata) | {"racks": racks}
    if as_json:
        print_json(document)
        return
    ensembles = document.pop("ensembles")
    custom = document.pop("custom")
    del document["racks"]
    if document["ctime_ms"] is not None:
        document["ctime_ms"] = moment_text(document["ctime_ms"])
    facts = {name.removesuffix("_ms").replace("_", " "): value for name, value in document.items()}
    facts |= {f"custom {name}": shown.get("payload", shown) for name, shown in custom.items()}
    print_facts((name, "-" if value is None else str(value)) for name, value in facts.items())
    print()
    rows = [
        [str(one["first_entry_id"]), "  ".join(_with_rack(bookie, racks) for bookie in one["bookies"])]
        for one in ensembles
    ]
    print_table(["from entry", "bookies"], rows)


def _with_rack(bookie: str, racks: Mapping[str, str]) -> str:
    return f"{bookie} ({racks[bookie]})" if bookie in racks else bookie


@command.command("read")
@click.argument("ledger_id", metavar="LEDGER", type=LEDGER_ID)
@service_options
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first entry.")
@click.option("--last", type=click.IntRange(min=0), help="The last entry. [default: the last confirmed one]")
@click.option("--recover", is_flag=True, help="First fence the ledger's writer and close the ledger.")
@json_option("one object per entry, one a line,")
@read_only_option
def read(
    ledger_id: int,
    service: Service,
    first: int,
    last: int | None,
    recover: bool,
    as_json: bool,
    read_only: bool,
) -> None:
    """Print the payload of each entry of LEDGER on a line.

    An open ledger is read up to its last confirmed entry. Its writer is not disturbed, unless --recover is
    given.
    """
    if recover and read_only:
        raise click.UsageError(
            "--recover closes the ledger, which --read-only forbids; leave one of them out"
        )
    opening = open_ledgers(service, read_only=read_only)
    run(partial(_read, opening, ledger_id, first, last, recover=recover, as_json=as_json))


@command.command("simpletest")
@service_options
@click.option("--ensemble", default=3, show_default=True, type=click.IntRange(min=1), help="Ensemble size.")
@click.option(
    "--write-quorum", default=2, show_default=True, type=click.IntRange(min=1), help="Replicas per entry."
)
@click.option(
    "--ack-quorum", default=2, show_default=True, type=click.IntRange(min=1), help="Replies to wait for."
)
@click.option(
    "--entries", default=1000, show_default=True, type=click.IntRange(min=1), help="Number of entries."
)
@json_option("ledger id and durations")
def simpletest(
    service: Service, ensemble: int, write_quorum: int, ack_quorum: int, entries: int, as_json: bool
) -> None:
    """Write a ledger of random entries, read them back, compare, delete the ledger."""
    if not ensemble >= write_quorum >= ack_quorum:
        raise click.UsageError(
            f"--ensemble {ensemble}, --write-quorum {write_quorum}, --ack-quorum {ack_quorum}:"
            " no value may be greater than the one before"
        )

    async def go() -> dict[str, Any]:
        async with open_ledgers(service) as ledgers:
            return await _test(ledgers.client, (ensemble, write_quorum, ack_quorum), entries, quiet=as_json)

    document = run(go)
    if as_json:
        print_json(document)
    else:
        print_note(
            f"ledger {document['ledger_id']}: {entries:,} entries written in {document['write_s']:.2f} s and"
            f" read in {document['read_s']:.2f} s, all equal to the written ones; the ledger is deleted"
        )


@command.command("delete")
@click.argument("ledger_ids", metavar="LEDGER...", type=LEDGER_ID, nargs=-1, required=True)
@service_options
@click.option("--yes", is_flag=True, help="Delete without asking.")
def delete(ledger_ids: tuple[int, ...], service: Service, yes: bool) -> None:
    """Delete ledgers and all their entries permanently.

    If a ledger is the segment of a log, the log loses those records.
    """
    if not yes:
        ids = ", ".join(map(str, ledger_ids))
        confirm(f"Delete ledger {ids} and all entries permanently?")

    async def go() -> None:
        async with open_ledgers(service) as ledgers:
            for ledger_id in ledger_ids:
                await ledgers.client.metadata(
                    ledger_id
                )  # raises if the id does not exist; delete would succeed
                async with audited_async("delete ledger", f"{ledgers.ledgers_root} {ledger_id}"):
                    await ledgers.client.delete(ledger_id)
                print_note(f"deleted {ledger_id}")

    run(go)


for added in (check, diff, export, import_, recover, underreplicated):
    command.add_command(added)
command.add_command(underreplicated, "listunderreplicated")  # the name in Apache's shell


def metadata_document(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """The metadata of a ledger without its password, as JSON values."""
    return {
        "ledger_id": ledger_id,
        "state": metadata.state.name,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "last_entry_id": metadata.last_entry_id if metadata.is_closed else None,
        "length_bytes": metadata.length_bytes if metadata.is_closed else None,
        "digest_type": metadata.digest_type.name,
        "ctime_ms": metadata.ctime_ms,
        "format_version": metadata.format_version,
        "ensembles": [attrs.asdict(ensemble) for ensemble in metadata.ensembles],
        "custom": {name: payload_document(value) for name, value in metadata.custom.items()},
    }


async def _read(
    opening: AbstractAsyncContextManager[Deployment],
    ledger_id: int,
    first: int,
    last: int | None,
    *,
    recover: bool,
    as_json: bool,
) -> None:
    async with opening as ledgers:
        reader = await _open(ledgers, ledger_id, recover=recover)
        async with reader:
            stop = reader.last_confirmed if last is None else last
            while first <= stop:
                payloads = await reader.read_payloads(first, stop)
                await write_out(_printed(ledger_id, first, payloads, as_json=as_json))
                first += len(payloads)


async def _open(ledgers: Deployment, ledger_id: int, *, recover: bool) -> Any:
    if not recover:
        return await ledgers.client.open(ledger_id, password=None, recover=False)
    async with audited_async("recover ledger", f"{ledgers.ledgers_root} {ledger_id}"):
        return await ledgers.client.open(ledger_id, password=None, recover=True)


def _printed(ledger_id: int, first: int, payloads: Sequence[bytes], *, as_json: bool) -> bytes:
    if not as_json:
        return payload_lines(payloads)
    return b"".join(
        json.dumps(
            {"ledger_id": ledger_id, "entry_id": entry_id, "size_bytes": len(payload)}
            | payload_document(payload)
        ).encode()
        + b"\n"
        for entry_id, payload in enumerate(payloads, first)
    )


async def _test(
    client: LedgerClient, sizes: tuple[int, int, int], entries: int, *, quiet: bool
) -> dict[str, Any]:
    ensemble_size, write_quorum, ack_quorum = sizes
    payloads = [os.urandom(TEST_ENTRY_BYTES) for _ in range(entries)]
    async with await client.create(
        ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum
    ) as writer:
        ledger_id = writer.ledger_id
        try:
            started = time.monotonic()
            with progress_bar("writing", entries, unit="entries", quiet=quiet) as show:
                for start in range(0, entries, TEST_BATCH_ENTRIES):
                    await writer.append_many(payloads[start : start + TEST_BATCH_ENTRIES])
                    show(min(start + TEST_BATCH_ENTRIES, entries))
            await writer.close()
            write_s, started = time.monotonic() - started, time.monotonic()
            async with await client.open(ledger_id) as reader:
                await _compare(reader, payloads)
            read_s = time.monotonic() - started
        except (LedgerError, trio.Cancelled) as exc:
            if not isinstance(exc, SimpleTestError):
                with trio.move_on_after(5) as scope:
                    scope.shield = True
                    await client.delete(ledger_id)
            raise
    await client.delete(ledger_id)
    return {"ledger_id": ledger_id, "entries": entries, "write_s": write_s, "read_s": read_s}


async def _compare(reader: Any, payloads: Sequence[bytes]) -> None:
    last = len(payloads) - 1
    if reader.last_confirmed != last:
        raise SimpleTestError(
            f"ledger {reader.ledger_id}: entry {last} was acknowledged, but the ledger ends at entry"
            f" {reader.last_confirmed}. The ledger is kept; read it with"
            f" `dlog ledger read {reader.ledger_id}`"
        )
    at = 0
    while at <= last:
        for payload in await reader.read_payloads(at, last):
            if payload != payloads[at]:
                raise SimpleTestError(
                    f"ledger {reader.ledger_id}: entry {at} differs from the written one. The ledger is kept;"
                    f" read it with `dlog ledger read {reader.ledger_id} --first {at} --last {at}`"
                )
            at += 1
