"""Placement in a client: it looks up locations and free disk, and its ledgers follow the rules."""

# covers: ledger/ledger_spec.py

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.errors import (
    BookieSecurityError,
    IoErrorRefusal,
    LedgerWriteError,
    LocationError,
    NotEnoughBookiesError,
    PlacementError,
)
from ledger.ledger_spec import LedgerSpec
from ledger.placement.config import FixedLocations, PlacementConfig, PlacementPolicy, TableLocations
from ledger.placement.placer import Placer
from ledger.wire.messages import AddRequest, BookieInfoRequest

RACKS = FixedLocations({"b1": "/a", "b2": "/a", "b3": "/b", "b4": "/b", "b5": "/c"})
NO_ADDS = lambda request: Code.READ_ONLY if isinstance(request, AddRequest) else None  # noqa: E731


def aware(**settings: Any) -> ClientConfig:
    placement = PlacementConfig(policy=PlacementPolicy.RACK_AWARE, locations=RACKS, **settings)
    return ClientConfig(placement=placement, unavailable_timeout_s=3.0)


async def test_ledgers_are_spread_over_racks_also_after_replacements(
    cluster: Any, autojump_clock: Any
) -> None:
    for name in ("b4:1", "b5:1"):
        await cluster.start(name)
    async with cluster.client(aware(racks_min=3, enforce_racks=True)) as client:
        for _ in range(10):
            writer = await client.create()
            assert "b5:1" in writer.metadata.last_ensemble.bookies
            racks = {RACKS.locations[bookie[:2]] for bookie in writer.metadata.last_ensemble.bookies}
            assert racks == {"/a", "/b", "/c"}
        (in_a,) = {"b1:1", "b2:1"} & set(writer.metadata.last_ensemble.bookies)
        cluster.bookies[in_a].refuse = NO_ADDS
        await writer.append_many([b"x"] * 5)
        await trio.sleep(1)
        assert {"b1:1", "b2:1"} - {in_a} < set(writer.metadata.last_ensemble.bookies)


async def test_enforced_racks_that_are_unavailable_fail_the_creation(cluster: Any) -> None:
    async with cluster.client(aware(racks_min=3, enforce_racks=True)) as client:
        with pytest.raises(PlacementError, match="must span 3 racks; to choose from: 2 in /a, 1 in /b"):
            await client.create()
        assert await client.ledger_ids() == []
    async with cluster.client(aware(racks_min=3)) as client:
        assert len((await client.create()).metadata.last_ensemble.bookies) == 3


async def test_a_replacement_that_enforced_racks_forbid_is_explained_after_the_retry_timeout(
    cluster: Any, autojump_clock: Any
) -> None:
    await cluster.start("b4:1")
    async with cluster.client(aware(enforce_racks=True)) as client:
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"0")
        for name in ("b1:1", "b2:1"):
            cluster.bookies[name].refuse = NO_ADDS
        with pytest.raises(
            LedgerWriteError, match=r"no replacement for 1 of its bookies: .*must span 2 racks"
        ):
            await _exhaust(writer, cluster)


async def _exhaust(writer: Any, cluster: Any) -> None:
    # Stop the other bookie of rack a, so that only bookies of rack b are left.
    (other,) = {"b1:1", "b2:1"} - set(writer.metadata.last_ensemble.bookies)
    await cluster.stop(other)
    await trio.sleep(0.1)
    await writer.append(b"1")


async def test_confirmation_waits_for_a_second_rack(cluster: Any, autojump_clock: Any) -> None:
    async with cluster.client(aware(enforce_fault_domains=True)) as client:
        writer = await client.create()
        await writer.append(b"0")
        await trio.testing.wait_all_tasks_blocked()
        cluster.bookies["b3:1"].is_silent = True
        entry_id = writer.submit(b"1")
        with trio.move_on_after(1) as scope:
            await writer.wait_confirmed(entry_id)
        assert scope.cancelled_caught  # two of rack a are an ack quorum, but one fault domain
        assert writer.lac == 0
        cluster.bookies["b3:1"].is_silent = False
        await cluster.stop("b3:1")
        await cluster.start("b3:1")
        await writer.wait_confirmed(entry_id)


async def test_a_delayed_change_waits_until_too_few_racks_are_left(cluster: Any, autojump_clock: Any) -> None:
    config = attrs.evolve(aware(enforce_racks=True, enforce_fault_domains=True), delay_ensemble_change=True)
    async with cluster.client(config) as client:
        writer = await client.create()
        await writer.append(b"0")
        for name in ("b4:1", "b5:1"):
            await cluster.start(name)
        await cluster.stop("b1:1")
        await writer.append(b"1")  # the remaining bookies span two racks
        await trio.sleep(30)
        assert len(writer.metadata.ensembles) == 1
        await cluster.start("b1:1")
        await trio.sleep(30)
        await cluster.stop("b3:1")
        await writer.append(b"2")  # an ack quorum is left, but in one rack
        await trio.sleep(1)
        assert "b3:1" not in writer.metadata.last_ensemble.bookies


async def test_the_only_bookie_of_the_second_rack_is_not_replaced_from_the_first(
    cluster: Any, autojump_clock: Any
) -> None:
    locations = FixedLocations({"b1": "/a", "b2": "/a", "b3": "/b", "b4": "/a"})
    config = aware(enforce_fault_domains=True)
    config = attrs.evolve(config, placement=attrs.evolve(config.placement, locations=locations))
    async with cluster.client(config) as client:
        writer = await client.create()
        await writer.append(b"0")
        await cluster.start("b4:1")
        await cluster.stop("b3:1")
        entry_id = writer.submit(b"1")
        await trio.sleep(1)
        await cluster.start("b3:1")
        await writer.wait_confirmed(entry_id)
        await cluster.stop("b3:1")
        with pytest.raises(LedgerWriteError, match="must span 2 racks; to choose from: 1 in /a"):
            await writer.append(b"2")


async def test_a_recovery_accepts_an_ack_quorum_in_one_rack(cluster: Any, autojump_clock: Any) -> None:
    async with cluster.client(aware(enforce_fault_domains=True)) as client:
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"0")
        writer.abandon()
        await cluster.stop("b3:1")
        async with await client.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 0
        assert set((await client.metadata(writer.ledger_id)).last_ensemble.bookies) == {"b1:1", "b2:1"}


async def test_two_dead_bookies_of_a_rack_do_not_replace_each_other_while_a_third_is_left(
    cluster: Any, autojump_clock: Any
) -> None:
    """The third has failed recently too, and has another rack, but it was not tried."""
    async with cluster.client(aware()) as client:
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"0")
        await cluster.start("b5:1")
        await trio.sleep(1)
        client.membership.report_failure("b5:1")
        for name in ("b1:1", "b2:1"):
            await cluster.stop(name, registered=True)
        await writer.append(b"1")
        assert set(writer.metadata.last_ensemble.bookies) == {"b3:1", "b5:1"}


async def test_a_bookie_that_refuses_this_client_replaces_no_other(cluster: Any) -> None:
    for name in ("b4:1", "b5:1"):
        await cluster.start(name)
    async with cluster.client() as client:
        client.membership.report_errors("b4:1", 1, BookieSecurityError("b4:1", "a certificate is missing"))
        placer, ensemble = client.context.placer, ("b1:1", "b2:1", "b3:1")
        for _ in range(20):
            assert await placer.choose_replacements(ensemble, {0}, 3, 2) == ({0: "b5:1"}, None)
        client.membership.report_errors("b5:1", 1, BookieSecurityError("b5:1", "a certificate is missing"))
        assert (await placer.choose_replacements(ensemble, {0}, 3, 2))[0] == {}


class MovingLocations:
    """A source of locations that a test changes; None makes it fail."""

    def __init__(self, **locations: str) -> None:
        self.locations: dict[str, str] | None = locations
        self.requested: list[Collection[str]] = []
        self.on_request: Callable[[], None] = lambda: None

    async def locate(self, bookies: Collection[str]) -> dict[str, str]:
        self.requested.append(bookies)
        self.on_request()
        await trio.lowlevel.checkpoint()
        if self.locations is None:
            raise LocationError("the script failed")
        return {bookie: at for bookie in bookies if (at := self.locations.get(bookie[:2])) is not None}


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> MovingLocations:
    """Bookies b1 and b2 in rack a, b3 in rack b, for clients made by ``aware``."""
    source = MovingLocations(b1="/a", b2="/a", b3="/b")
    monkeypatch.setattr("ledger.placement.placer.make_locator", lambda source_config, membership: source)
    return source


async def test_entries_are_confirmed_when_the_locations_become_known(
    cluster: Any, moving: MovingLocations, autojump_clock: Any
) -> None:
    moving.locations = None
    async with cluster.client(aware(enforce_fault_domains=True)) as client:
        writer = await client.create()
        entry_id = writer.submit(b"acknowledged by all, with unknown locations")
        with trio.move_on_after(10) as scope:
            await writer.wait_confirmed(entry_id)
        assert scope.cancelled_caught
        moving.locations = {"b1": "/a", "b2": "/a", "b3": "/b"}
        with trio.fail_after(60):
            await writer.wait_confirmed(entry_id)
            await writer.append(b"the next one")
        await writer.close()


async def test_a_rack_does_not_count_after_its_only_bookie_has_moved(
    cluster: Any, moving: MovingLocations, autojump_clock: Any
) -> None:
    async with cluster.client(aware(enforce_fault_domains=True)) as client:
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"0")
        await cluster.stop("b3:1")
        await trio.sleep(1)
        moving.locations = {"b3": "/a"}
        await cluster.start("b3:1")
        await trio.sleep(60)
        entry_id = writer.submit(b"1")
        with trio.move_on_after(5) as scope:
            await writer.wait_confirmed(entry_id)
        assert scope.cancelled_caught
        assert writer.lac == 0


async def test_a_location_that_becomes_known_does_not_count_acknowledgements_of_lost_bookies(
    cluster: Any, moving: MovingLocations, autojump_clock: Any
) -> None:
    moving.locations = None
    async with cluster.client(aware(enforce_fault_domains=True)) as client:
        writer = await client.create()
        entry_id = writer.submit(b"0")
        await trio.sleep(1)
        for name in ("b1:1", "b2:1", "b3:1"):
            await cluster.stop(name, registered=True)
            cluster.wipe(name)
            cluster.revive(name)
        moving.locations = {"b1": "/a", "b2": "/b", "b3": "/c"}
        await writer.wait_confirmed(entry_id)
        holders = [
            one for one in cluster.bookies.values() if entry_id in one.ledgers[writer.ledger_id].entries
        ]
        assert len(holders) >= 2


@pytest.mark.parametrize("found", [None, {}], ids=["fails", "does not know"])
async def test_a_bookie_that_moved_is_looked_up_until_its_location_is_known(
    cluster: Any, moving: MovingLocations, autojump_clock: Any, found: dict[str, str] | None
) -> None:
    async with cluster.client(aware(enforce_racks=True)) as client:
        await client.create()
        await cluster.stop("b3:1")
        await trio.sleep(1)
        moving.locations = found
        await cluster.start("b3:1")
        await trio.sleep(1)
        await client.create()  # the bookie keeps its last known location
        moving.locations = {"b3": "/a"}
        await trio.sleep(60)
        with pytest.raises(PlacementError, match="3 in /a"):
            await client.create()
        moving.requested.clear()
        await trio.sleep(3600 / 4)
        assert moving.requested == []  # its location is known


async def test_a_bookie_that_moved_is_looked_up_again_after_a_cancelled_look_up(
    moving: MovingLocations,
) -> None:
    membership: Any = SimpleNamespace(
        writable=frozenset({"b1:1", "b2:1", "b3:1"}), readonly=frozenset(), suspects=(), quarantined=()
    )
    config = aware(enforce_racks=True).placement
    placer = Placer(membership, None, config, random.Random(0))  # type: ignore[arg-type]
    await placer.choose_ensemble(3, 3, 2)
    all_bookies = membership.writable
    membership.writable -= {"b3:1"}
    with pytest.raises(NotEnoughBookiesError):
        await placer.choose_ensemble(3, 3, 2)
    membership.writable = all_bookies
    moving.locations = {"b3": "/a"}
    with trio.CancelScope() as scope:
        moving.on_request = scope.cancel
        await placer.choose_ensemble(3, 3, 2)
    assert scope.cancelled_caught
    with pytest.raises(PlacementError, match="3 in /a"):
        await placer.choose_ensemble(3, 3, 2)


async def test_a_source_that_cannot_be_used_leaves_locations_unknown(cluster: Any, tmp_path: Any) -> None:
    placement = PlacementConfig(
        policy=PlacementPolicy.RACK_AWARE, locations=TableLocations(path=tmp_path / "missing")
    )
    async with cluster.client(ClientConfig(placement=placement)) as client:
        assert len((await client.create()).metadata.last_ensemble.bookies) == 3


async def test_a_location_that_is_found_later_counts(
    cluster: Any, tmp_path: Any, autojump_clock: Any
) -> None:
    table = tmp_path / "table"
    table.write_text("b1 /a\nb2 /a\n")
    placement = PlacementConfig(
        policy=PlacementPolicy.RACK_AWARE, locations=TableLocations(path=table), enforce_racks=True
    )
    # Without a time limit, because the mock clock would jump to it while a thread reads the table.
    async with cluster.client(ClientConfig(placement=placement), ends_within_s=math.inf) as client:
        with pytest.raises(PlacementError, match="1 in unknown locations"):
            await client.create()
        table.write_text("b1 /a\nb2 /a\nb3 /other\n")
        await trio.sleep(120)
        assert "b3:1" in (await client.create()).metadata.last_ensemble.bookies


async def test_regions_need_a_region_and_a_rack(cluster: Any) -> None:
    locations = FixedLocations({"b1": "/eu/r1", "b2": "/us/r1", "b3": "/only-a-rack"})
    placement = PlacementConfig(
        policy=PlacementPolicy.REGION_AWARE, locations=locations, regions=("eu", "us"), racks_min=1
    )
    async with cluster.client(ClientConfig(placement=placement)) as client:
        writer = await client.create(ensemble_size=2, write_quorum=2, ack_quorum=2)
        assert set(writer.metadata.last_ensemble.bookies) == {"b1:1", "b2:1"}
        with pytest.raises(ValueError, match="can never span"):
            await client.create(ensemble_size=2, write_quorum=2, ack_quorum=1)


async def test_free_disk_is_requested_and_sets_the_weights(cluster: Any, autojump_clock: Any) -> None:
    free = {"b1:1": 10**12, "b2:1": 10**9, "b3:1": 10**9}
    for name, bookie in cluster.bookies.items():
        bookie.free_bytes = free[name]
    config = ClientConfig(
        placement=PlacementConfig(weighted=True, weight_multiple_max=50.0, weight_interval_s=600.0)
    )
    async with cluster.client(config) as client:
        await trio.sleep(1)
        chosen = [
            (
                await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
            ).metadata.last_ensemble.bookies[0]
            for _ in range(60)
        ]
        assert chosen.count("b1:1") > 45
        requests = sum(isinstance(one, BookieInfoRequest) for one in cluster.bookies["b2:1"].requests)
        assert requests == 1
        await trio.sleep(601)
        requests = sum(isinstance(one, BookieInfoRequest) for one in cluster.bookies["b2:1"].requests)
        assert requests == 2


async def test_a_bookie_with_many_errors_is_quarantined(cluster: Any, autojump_clock: Any) -> None:
    await cluster.start("b4:1")
    config = ClientConfig(placement=PlacementConfig(quarantine_errors_min=20))
    async with cluster.client(config) as client:
        writer = await client.create()
        bad = writer.metadata.last_ensemble.bookies[0]
        cluster.bookies[bad].refuse = lambda request: (
            Code.IO_ERROR if isinstance(request, AddRequest) else None
        )
        await writer.append_many([b"x"] * 30)
        await trio.sleep(120)  # longer than the memory of a failure
        cluster.bookies[bad].refuse = lambda request: None
        assert set(client.membership.suspects) == set()
        assert set(client.membership.quarantined) == {bad}
        for _ in range(10):
            assert bad not in (await client.create()).metadata.last_ensemble.bookies
        await trio.sleep(1800)
        assert set(client.membership.quarantined) == set()


async def test_a_quarantined_bookie_is_chosen_before_the_writer_would_fail(
    cluster: Any, autojump_clock: Any
) -> None:
    async with cluster.client() as client:
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"0")
        await cluster.start("b4:1")
        await trio.sleep(1)
        client.membership.report_errors("b4:1", 1000, IoErrorRefusal("b4:1", 0))
        for name in ("b1:1", "b2:1", "b3:1"):
            await cluster.stop(name, registered=True)
        await writer.append(b"1")
        assert writer.metadata.last_ensemble.bookies == ("b4:1",)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules", [{"enforce_racks": True}, {"enforce_fault_domains": True}], ids=["racks", "fault domains"]
)
async def test_a_smaller_ensemble_keeps_the_enforced_fault_domains(
    cluster: Any, rules: dict[str, bool]
) -> None:
    async with cluster.client(aware(**rules)) as client:
        await cluster.stop("b1:1")
        await trio.sleep(0.1)
        writer = await client.create_from(LedgerSpec(ack_quorum=1, may_be_smaller=True))
        assert set(writer.metadata.last_ensemble.bookies) == {"b2:1", "b3:1"}
        await cluster.start("b1:1")
        await cluster.stop("b3:1")
        await trio.sleep(0.1)
        # One bookie would be a write quorum in a single rack, which is what the rule forbids.
        with pytest.raises(NotEnoughBookiesError):
            await client.create_from(LedgerSpec(ack_quorum=1, may_be_smaller=True))
