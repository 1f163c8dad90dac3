"""`dlog balance` on bookies made of dictionaries: the plan, the moves, the exit codes."""

# covers: dlog/cli/operators/balance.py

from __future__ import annotations

from typing import Any

import pytest

from dlog.cli.main import main
from dlog.cli.operators import autorecovery
from dlog.cli.operators import balance as command
from ledger.balancing import BalanceOptions, RunningBalance
from ledger.codes import Code
from ledger.deploy import Deployment
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.wire.messages import AddRequest
from tests.unit.dlog.cli.operators.test_cli_autorecovery import CommandWorld


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandWorld:
    """Ten ledgers on three bookies; a fourth one is new."""
    world = CommandWorld(capfd)
    monkeypatch.setattr(autorecovery, "open_ledgers", world.open_ledgers)
    monkeypatch.setattr(command, "BalanceOptions", lambda **more: BalanceOptions(**more, wait_s=0))
    new = world.running.pop()
    for _ in range(10):
        world.closed_ledger()
    world.running.append(new)
    world.run(_nothing)
    for bookie in world.bookies.values():
        bookie.free_bytes = 1_000_000
    return world


async def _nothing(deployment: Deployment) -> None:
    """The new bookie has started once."""


def replicas(world: CommandWorld) -> dict[str, int]:
    async def count(deployment: Deployment) -> dict[str, int]:
        found = dict.fromkeys(world.bookies, 0)
        for ledger_id in await deployment.client.ledger_ids():
            for bookie in (await deployment.client.metadata(ledger_id)).last_ensemble.bookies:
                found[bookie] += 1
        return found

    found = world.run(count)
    assert isinstance(found, dict)
    return found


def test_the_plan_is_shown_and_nothing_is_moved(world: CommandWorld) -> None:
    shown = world.dlog("balance", "--dry-run")
    assert shown.code == 0
    assert "bytes before" in shown.out
    assert "b4:1" in shown.out
    assert "planned; nothing was changed" in shown.err
    document: Any = world.dlog("balance", "--dry-run", "--json").document
    assert document["dry_run"] is True
    assert len(document["moves"]) in (7, 8)
    assert document["moves_done"] == 0
    new = next(one for one in document["bookies"] if one["bookie"] == "b4:1")
    assert new["bytes_before"] == new["bytes_after"] == 0
    assert new["bytes_planned"] == sum(move["size_bytes"] for move in document["moves"])
    assert replicas(world)["b4:1"] == 0


def test_replicas_are_moved_and_a_second_run_has_nothing_to_do(world: CommandWorld) -> None:
    done = world.dlog("balance", "--json")
    document: Any = done.document
    assert (done.code, document["left"]) == (0, [])
    assert document["moves_done"] == len(document["moves"]) == replicas(world)["b4:1"]
    assert document["entries_copied"] == 4 * document["moves_done"]
    assert "moves done" in done.err  # the progress
    again = world.dlog("balance", "--within", "20")
    assert (again.code, "nothing to move" in again.err) == (0, True)


def test_a_ledger_that_lacks_replicas_forbids_it(world: CommandWorld) -> None:
    async def mark(deployment: Deployment) -> None:
        await UnderReplicatedLedgers(deployment.store, "/ledgers").mark(0, ["b1:1"])

    world.run(mark)
    for arguments in ((), ("--dry-run",)):
        refused = world.dlog("balance", *arguments)
        assert refused.code == 6
        assert "ledger 0 lacks replicas" in refused.err
        assert refused.out == ""


def test_a_bookie_that_is_away_forbids_it(world: CommandWorld) -> None:
    world.running.remove("b1:1")
    refused = world.dlog("balance")
    assert (refused.code, "bookie b1:1" in refused.err) == (6, True)


def test_what_could_not_be_moved_is_named_with_the_reason(world: CommandWorld) -> None:
    world.bookies["b4:1"].refuse = lambda request: Code.READ_ONLY if isinstance(request, AddRequest) else None
    done = world.dlog("balance")
    assert done.code == 1
    assert "ledger 0 stays on b" in done.err
    assert "0 of 7 moves done" in done.err or "0 of 8 moves done" in done.err
    assert replicas(world)["b4:1"] == 0


def test_the_wait_for_another_balance_names_its_machine(capfd: pytest.CaptureFixture[str]) -> None:
    command._show_wait(RunningBalance("ops1", 0))
    assert "another balance runs on ops1; waiting" in capfd.readouterr().err


def test_a_directory_has_one_bookie_and_no_balance(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(("balance", "--service", "file:///nowhere")) == 2
    assert "name a cluster" in capfd.readouterr().err
