"""Choosing bookies with all that is known of them: lists, locations, free disk, health.

Inside: keeping locations and weights up to date, handing them to the rules. Not inside: the rules
(``placement_policy``), sources of locations (``locations``), who is writable (``membership``).
Always: choosing never waits for weights; it waits for locations only of bookies that came since it last did,
and not longer than their source may take; a source that fails leaves bookies in unknown places, or where they
stood before they were away, and that is logged; it is asked again until it tells.

Source: BookieWatcherImpl.java, BookieInfoReader.java; reference on operations 1.1, 1.2, 1.7.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Sequence

import attrs
import trio

from ledger.errors import BookieError, LocationError
from ledger.locations import make_locator
from ledger.membership import Membership
from ledger.placement_config import PlacementConfig, PlacementPolicy
from ledger.placement_policy import Candidates, acks_span, choose_spread_ensemble, choose_spread_replacements
from ledger.topology import DEFAULT_RACK, DEFAULT_REGION_RACK, Topology
from ledger.transport import Transport
from ledger.weights import weights_of_free_bytes
from ledger.wire.codes import Code
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest
from ledger.writer import Spans

logger = logging.getLogger(__name__)

LOCATION_RETRY_S = 30.0  # for bookies whose location was asked for in vain
INFO_CALLS_MAX = 8  # at once
INFO_PAUSE_MIN_S = 1.0


class Placer:
    """Chooses the bookies of one client's ledgers."""

    def __init__(
        self, membership: Membership, transport: Transport, config: PlacementConfig, rng: random.Random
    ) -> None:
        self._membership, self._transport = membership, transport
        self._config, self._rng = config, rng
        self._locator = make_locator(config.locations, membership)
        self._locations: dict[str, str] = {}
        self._ask_at: dict[str, float] = {}  # of bookies that have not been located since they came
        self._registered: frozenset[str] = frozenset()
        self._locating = trio.Lock()
        self._moved = trio.Event()
        self._free_bytes: dict[str, int] = {}
        self._turn = 0

    def __repr__(self) -> str:
        return f"<Placer {self._config.policy.value}, {len(self._locations)} bookies located>"

    @property
    def topology(self) -> Topology:
        """Where bookies stand, as far as it is known now."""
        default = DEFAULT_REGION_RACK if self._config.policy is PlacementPolicy.REGION_AWARE else DEFAULT_RACK
        return Topology(self._locations, default, self._config.local_location)

    @property
    def config(self) -> PlacementConfig:
        """The settings it follows."""
        return self._config

    async def choose_ensemble(self, size: int, write_quorum: int, ack_quorum: int) -> tuple[str, ...]:
        """The bookies of a new ensemble.

        Raises:
            NotEnoughBookiesError: Fewer than ``size`` bookies are writable.
            PlacementError: They do not allow what is enforced.
            ValueError: The quorums can never keep the promise about regions.
        """
        await self._locate_new()
        self._turn += 1
        return choose_spread_ensemble(
            self._config,
            self._candidates(),
            size,
            write_quorum,
            ack_quorum,
            self._rng,
            turn=self._turn,
        )

    async def choose_replacements(
        self,
        ensemble: Sequence[str],
        failed: Collection[int],
        write_quorum: int,
        ack_quorum: int,
        *,
        tried: Sequence[str] = (),
        is_pressed: bool = False,
    ) -> tuple[dict[int, str], str | None]:
        """Bookies for as many failed indices as possible; why not for all, if rules forbid it.

        Args:
            tried: Those that failed the caller lately, the last one last. They come after all others, in this
                order: else two dead ones of one rack could be exchanged for each other until patience ends,
                while a third that is well is never tried.
            is_pressed: Else the ledger's writer ends: quarantined bookies are as good as others.
        """
        await self._locate_new()
        candidates = attrs.evolve(self._candidates(), tried=tried)
        if is_pressed:
            candidates = attrs.evolve(candidates, quarantined=())
        return choose_spread_replacements(
            self._config, candidates, ensemble, failed, write_quorum, ack_quorum, self._rng
        )

    def choose_for_recovery(
        self, ensemble: Sequence[str], failed: Collection[int], write_quorum: int, ack_quorum: int
    ) -> dict[int, str]:
        """The same with the locations that are known already; any ack quorum will do for a recovery."""
        config = attrs.evolve(self._config, enforce_fault_domains=False)
        chosen, _ = choose_spread_replacements(
            config, self._candidates(), ensemble, failed, write_quorum, ack_quorum, self._rng
        )
        return chosen

    def spans(self, write_quorum: int) -> Spans | None:
        """What an ack quorum must fulfil besides its size; None: nothing.

        Its answers hold until ``wait_moved`` returns.
        """
        if not self._config.enforce_fault_domains:
            return None
        return lambda bookies: acks_span(bookies, self.topology, self._config, write_quorum)

    async def wait_moved(self) -> None:
        """Return when it was learnt since the call that a bookie stands elsewhere than was known."""
        await self._moved.wait()

    def distance(self, bookie: str) -> int:
        """How far a bookie is from this program; 0 is nearest."""
        return 0 if self._config.policy is PlacementPolicy.RANDOM else self.topology.distance(bookie)

    async def run(self) -> None:
        """The client's task: it locates bookies as they come, and asks for free disk."""
        async with trio.open_nursery() as nursery:
            if self._config.policy is not PlacementPolicy.RANDOM:
                nursery.start_soon(self._follow_bookies)
            if self._config.weighted:
                nursery.start_soon(self._follow_free_disk)

    def _candidates(self) -> Candidates:
        membership = self._membership
        writable = membership.writable
        free_bytes = {bookie: free for bookie, free in self._free_bytes.items() if bookie in writable}
        return Candidates(
            writable=writable,
            topology=self.topology,
            suspects=membership.suspects,
            quarantined=membership.quarantined,
            weights=weights_of_free_bytes(free_bytes, self._config.weight_multiple_max),
        )

    # Locations.

    async def _follow_bookies(self) -> None:
        while True:
            await self._locate_new()
            with trio.move_on_after(LOCATION_RETRY_S):
                await self._membership.wait_change()

    async def _locate_new(self) -> None:
        if self._config.policy is PlacementPolicy.RANDOM:
            await trio.lowlevel.checkpoint()
            return
        async with self._locating:
            membership = self._membership
            registered = membership.writable | membership.readonly
            now = trio.current_time()
            # One that was away may have moved. Until that is known it stands where it stood.
            returned = dict.fromkeys(registered - self._registered, now)
            self._ask_at = {b: at for b, at in self._ask_at.items() if b in registered} | returned
            self._registered = registered
            wanted = [bookie for bookie, at in self._ask_at.items() if at <= now]
            if not wanted:
                return
            found: dict[str, str] = {}
            try:
                found = await self._locator.locate(sorted(wanted))
            except LocationError as exc:
                logger.warning("where %d bookies stand is unknown: %s", len(wanted), exc)
            before = dict(self._locations)
            for bookie in wanted:
                location = found.get(bookie)
                if location is not None and self._usable(bookie, location):
                    self._locations[bookie] = location
                    del self._ask_at[bookie]
                else:
                    self._ask_at[bookie] = now + LOCATION_RETRY_S
            if self._locations != before:
                self._moved.set()
                self._moved = trio.Event()

    def _usable(self, bookie: str, location: str) -> bool:
        if self._config.policy is PlacementPolicy.REGION_AWARE and location.count("/") != 2:
            logger.warning("bookie %s stands in %s; a region and a rack are needed", bookie, location)
            return False
        return True

    # Free disk.

    async def _follow_free_disk(self) -> None:
        ask_at: dict[str, float] = {}
        limiter = trio.CapacityLimiter(INFO_CALLS_MAX)
        while True:
            writable = self._membership.writable
            ask_at = {bookie: ask_at.get(bookie, 0.0) for bookie in writable}
            self._free_bytes = {b: free for b, free in self._free_bytes.items() if b in writable}
            now = trio.current_time()
            async with trio.open_nursery() as nursery:
                for bookie in sorted(bookie for bookie, at in ask_at.items() if at <= now):
                    nursery.start_soon(self._ask_free_disk, bookie, limiter, ask_at)
            next_at = min(ask_at.values(), default=trio.current_time() + self._config.weight_retry_s)
            with trio.move_on_after(max(INFO_PAUSE_MIN_S, next_at - trio.current_time())):
                await self._membership.wait_change()

    async def _ask_free_disk(
        self, bookie: str, limiter: trio.CapacityLimiter, ask_at: dict[str, float]
    ) -> None:
        pause_s = self._config.weight_retry_s
        async with limiter:
            try:
                reply = await self._transport.call(bookie, BookieInfoRequest(total_disk_capacity=False))
            except BookieError as exc:
                logger.info("free disk is unknown: %s", exc)
            else:
                if (
                    isinstance(reply, BookieInfoReply)
                    and reply.code is Code.OK
                    and reply.free_disk_bytes is not None
                ):
                    self._free_bytes[bookie] = reply.free_disk_bytes
                    pause_s = self._config.weight_interval_s
        ask_at[bookie] = trio.current_time() + pause_s
