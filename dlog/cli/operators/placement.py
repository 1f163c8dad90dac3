"""`dlog placement check`: the racks of the bookies, and the ledgers that violate the policy of placement.

Inside: options and output. Not inside: the rules (``ledger.placement``), the check of one ledger
(``ledger.fragments.placement_check``), moving replicas.
Always: nothing is changed or marked.

Source: BookKeeper, AuditorPlacementPolicyCheckTask.java.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import click

import dlog
from dlog.cli.operators.autorecovery import opened_cluster
from dlog.cli.operators.service import Service, service_options
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import counted, print_json, print_note, print_table
from dlog.cli.terminal.signals import run
from ledger.client import LedgerClient
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.fragments.placement_check import Placing, ledger_placing
from ledger.fragments.registered import read_registered
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.topology import DEFAULT_RACK, DEFAULT_REGION_RACK, Topology

POLICIES = [each.value for each in PlacementPolicy if each is not PlacementPolicy.RANDOM]
_OPEN = "open"  # its last ensemble may still change


@click.group("placement", cls=CommandGroup)
def command() -> None:
    """Check that the replicas of ledgers are in the racks that the policy wants."""


@command.command("check")
@service_options
@click.option(
    "--policy", type=click.Choice(POLICIES), help="The policy to check. [default: that of the settings]"
)
@click.option(
    "--racks-min",
    type=click.IntRange(min=1),
    metavar="N",
    help="Racks that each write quorum shall span. [default: that of the settings]",
)
@json_option("the counts, the racks and the ledgers")
def check(service: Service, policy: str | None, racks_min: int | None, as_json: bool) -> int:
    """Count the closed ledgers whose replicas violate the policy of placement, and list them.

    The policy and the source of the racks are those of the client's settings (`placement.policy`,
    `placement.locations`). A ledger with a bookie that is away, or whose rack is not known, counts as
    unknown. Exit code 1: a ledger violates the policy.
    """

    async def go() -> dict[str, Any]:
        async with opened_cluster(service) as opened:
            client = opened.deployment.client
            config = _wanted(client.context.placer.config, policy, racks_min)
            return await _checked(client, config)

    found = run(go)
    if as_json:
        print_json(found)
    else:
        print_table(["rack", "bookies"], [[rack, str(count)] for rack, count in found["racks"].items()])
        if found["bad_ledgers"]:
            print()
            rows = [[str(one["ledger_id"]), "  ".join(one["places"])] for one in found["bad_ledgers"]]
            print_table(["ledger", "its bookies and racks"], rows)
    print_note(
        f"{found['policy']}, {found['racks_min']} racks for each write quorum: of"
        f" {counted(found['ledgers'], 'closed ledger')} {found['bad']} violate it, of {found['unknown']} it"
        f" is not known; {counted(found['open'], 'ledger')} are written and were left out"
    )
    return ExitCode.FAILED if found["bad"] else ExitCode.OK


def _wanted(config: PlacementConfig, policy: str | None, racks_min: int | None) -> PlacementConfig:
    changes: dict[str, Any] = {} if policy is None else {"policy": PlacementPolicy(policy)}
    if racks_min is not None:
        changes["racks_min"] = racks_min
    try:
        config = attrs.evolve(config, **changes)
    except ValueError as exc:
        raise dlog.ConfigError(str(exc)) from exc
    if config.policy is PlacementPolicy.RANDOM:
        raise dlog.ConfigError(
            "the settings say placement.policy = random, which nothing violates; set the policy of the"
            " writers, or give --policy"
        )
    return config


async def _checked(client: LedgerClient, config: PlacementConfig) -> dict[str, Any]:
    context = client.context
    catalog = context.catalog
    registered = (await read_registered(catalog.store.current_session(), catalog.root)).all
    locations = await context.placer.look_up(registered)
    default = DEFAULT_REGION_RACK if config.policy is PlacementPolicy.REGION_AWARE else DEFAULT_RACK
    topology = Topology(locations, default)
    counts = Counter[str]()
    bad = []
    for ledger_id in await client.ledger_ids():
        try:
            metadata = (await catalog.get(ledger_id)).metadata
        except NoSuchLedgerError:
            continue
        except LedgerError:
            counts[Placing.UNKNOWN.value] += 1
            continue
        if not metadata.is_closed:
            counts[_OPEN] += 1
            continue
        placing = ledger_placing(metadata, config, topology, registered)
        counts[placing.value] += 1
        if placing is Placing.BAD:
            members = sorted({bookie for each in metadata.ensembles for bookie in each.bookies})
            bad.append({"ledger_id": ledger_id, "places": [f"{one} {topology.rack(one)}" for one in members]})
    return {
        "policy": config.policy.value,
        "racks_min": config.racks_min,
        "racks": dict(sorted(Counter(map(topology.rack, registered)).items())),
        "ledgers": sum(counts[each.value] for each in Placing),
        "bad": counts[Placing.BAD.value],
        "unknown": counts[Placing.UNKNOWN.value],
        "open": counts[_OPEN],
        "bad_ledgers": bad,
    }
