"""`dlog placement check`, and the racks of bookies in other commands."""

# covers: dlog/cli/operators/placement.py

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from dlog.cli.operators import autorecovery, bookies, ledger
from dlog.cli.operators import placement as command
from ledger.deploy import Deployment
from ledger.placement.config import PlacementConfig, PlacementPolicy, TableLocations
from ledger.placement.locations import make_locator
from tests.unit.dlog.cli.operators.test_cli_autorecovery import CommandWorld

CHECK = ("placement", "check", "--policy", "rack-aware")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The racks of all bookies: two in each of two racks."""
    path = tmp_path / "racks"
    path.write_text("b1:1 /r1\nb2:1 /r1\nb3:1 /r2\nb4:1 /r2\n")
    return path


@pytest.fixture
def world(table: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandWorld:
    world = CommandWorld(capfd)
    opened = world.open_ledgers

    @asynccontextmanager
    async def open_ledgers(service: object, *, read_only: bool = False) -> AsyncIterator[Deployment]:
        async with opened(service) as deployment:  # type: ignore[arg-type]
            placer = deployment.client.context.placer
            placer._locator = make_locator(TableLocations(path=table), deployment.client.membership)
            yield deployment

    for module in (autorecovery, bookies, ledger):
        monkeypatch.setattr(module, "open_ledgers", open_ledgers)
    return world


def ledger_on(world: CommandWorld, *names: str) -> int:
    """A closed ledger on these bookies alone."""
    before, world.running = world.running, list(names)

    async def write(deployment: Deployment) -> int:
        count = len(names)
        async with await deployment.client.create(
            ensemble_size=count, write_quorum=count, ack_quorum=count
        ) as writer:
            await writer.append(b"x")
        return writer.ledger_id

    found = world.run(write)
    world.running = before
    assert isinstance(found, int)
    return found


def test_ledgers_that_violate_the_policy_are_counted_and_listed(world: CommandWorld) -> None:
    good = ledger_on(world, "b1:1", "b3:1")
    assert world.dlog(*CHECK).code == 0
    bad = ledger_on(world, "b1:1", "b2:1")
    checked = world.dlog(*CHECK, "--json")
    assert checked.code == 1
    assert checked.document == {
        "policy": "rack-aware",
        "racks_min": 2,
        "racks": {"/r1": 2, "/r2": 2},
        "ledgers": 2,
        "bad": 1,
        "unknown": 0,
        "open": 0,
        "bad_ledgers": [{"ledger_id": bad, "places": ["b1:1 /r1", "b2:1 /r1"]}],
    }
    told = world.dlog(*CHECK)
    assert f"{bad}  " in told.out
    assert "of 2 closed ledgers 1 violate it" in told.err
    assert world.dlog(*CHECK, "--racks-min", "1").code == 0
    assert good != bad


def test_a_bookie_that_is_away_or_without_a_rack_makes_no_violation(world: CommandWorld, table: Path) -> None:
    ledger_on(world, "b1:1", "b2:1")
    world.running.remove("b2:1")
    found = world.dlog(*CHECK, "--json")
    assert (found.code, found.document["unknown"]) == (0, 1)  # type: ignore[index]
    world.running.append("b2:1")
    table.write_text("b1:1 /r1\n")
    found = world.dlog(*CHECK, "--json")
    assert (found.code, found.document["unknown"]) == (0, 1)  # type: ignore[index]


def test_a_policy_that_nothing_violates_is_no_answer(world: CommandWorld) -> None:
    refused = world.dlog("placement", "check")
    assert refused.code == 2
    assert "placement.policy = random" in refused.err


def test_the_commands_about_bookies_and_ledgers_show_racks(world: CommandWorld, table: Path) -> None:
    found = world.dlog("bookies", "list", "--json").document
    assert {each["bookie"]: each["rack"] for each in found} == {  # type: ignore[attr-defined]
        "b1:1": "/r1",
        "b2:1": "/r1",
        "b3:1": "/r2",
        "b4:1": "/r2",
    }
    shown = ledger_on(world, "b1:1", "b3:1")
    out = world.dlog("ledger", "show", str(shown)).out
    assert "b1:1 (/r1)" in out
    assert "b3:1 (/r2)" in out
    table.write_text("no table at all\n")
    listed = world.dlog("bookies", "list")
    assert (listed.code, "/r1" in listed.out) == (0, False)
    config = PlacementConfig(policy=PlacementPolicy.RACK_AWARE)
    assert command._wanted(config, None, 3) == attrs.evolve(config, racks_min=3)
