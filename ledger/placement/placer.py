"""Choosing bookies by registration, location, free disk and health.

Inside: keeping locations and weights up to date, passing them to the rules. Not inside: the rules
(``placement.spread_policy``), sources of locations (``locations``), the list of writable bookies
(``membership``).
Always: a choice never waits for weights. It waits for the locations of newly registered bookies only, at most
as long as the source may take. If the source fails, that is logged, and a bookie keeps its last known
location or stays without one; the look-up is repeated until it succeeds.

Source: BookieWatcherImpl.java, BookieInfoReader.java; docs/protocol.md 11.1, 11.2, 11.6.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Sequence
from functools import partial

import attrs
import trio

from ledger.codes import Code
from ledger.errors import BookieError, LocationError, NotEnoughBookiesError
from ledger.placement.adhering import choose_adhering
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.placement.locations import make_locator
from ledger.placement.membership import Membership
from ledger.placement.spread_policy import (
    Candidates,
    acks_span,
    choose_spread_ensemble,
    choose_spread_replacements,
    racks_wanted,
)
from ledger.placement.topology import DEFAULT_RACK, DEFAULT_REGION_RACK, Topology
from ledger.placement.weights import weights_of_free_bytes
from ledger.quorum import AckRule
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import failure_domain
from ledger.transport.transport import Transport
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest

logger = get_logger(__name__)

LOCATION_RETRY_S = 30.0  # after a look-up that gave no location
CHOSEN_AT_ONCE_MAX = 64  # bookies of an ensemble; replacements in a larger one are chosen in a thread
INFO_CALLS_MAX = 8  # requests for free disk at once
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
        self._locate_at: dict[str, float] = {}  # when to look up each unlocated bookie
        self._registered: frozenset[str] = frozenset()
        self._locating = trio.Lock()
        self._locations_changed = trio.Event()
        self._free_bytes: dict[str, int] = {}
        self._ensembles_chosen = 0

    def __repr__(self) -> str:
        return f"<Placer {self._config.policy.value}, {len(self._locations)} bookies located>"

    @property
    def topology(self) -> Topology:
        """The locations that are known now."""
        default = DEFAULT_REGION_RACK if self._config.policy is PlacementPolicy.REGION_AWARE else DEFAULT_RACK
        return Topology(self._locations, default, self._config.local_location)

    @property
    def config(self) -> PlacementConfig:
        """The settings of placement."""
        return self._config

    async def choose_ensemble(
        self, size: int, write_quorum: int, ack_quorum: int, *, may_be_smaller: bool = False
    ) -> tuple[str, ...]:
        """Choose the bookies of a new ensemble.

        Args:
            may_be_smaller: If there are fewer bookies, or the enforced rules allow no ensemble of this size,
                choose as many as possible, at least an ack quorum. The rules hold for the smaller ensemble.

        Raises:
            NotEnoughBookiesError: Fewer than ``size`` bookies are writable.
            PlacementError: The enforced rules allow no ensemble of them.
            ValueError: No ack quorum of this size can ever span the enforced regions.
        """
        await self._locate_new()
        try:
            return self._choose_ensemble(size, write_quorum, ack_quorum)
        except NotEnoughBookiesError:
            config = self._config
            least = ack_quorum
            if config.enforce_racks or config.enforce_fault_domains:
                # A smaller write quorum may span fewer racks, which must not weaken the rule.
                least = max(least, racks_wanted(config, write_quorum))
            writable = len(self._membership.writable)
            for smaller in range(min(size - 1, writable), least - 1, -1) if may_be_smaller else ():
                with contextlib.suppress(NotEnoughBookiesError):
                    return self._choose_ensemble(smaller, min(write_quorum, smaller), ack_quorum)
            raise

    def _choose_ensemble(self, size: int, write_quorum: int, ack_quorum: int) -> tuple[str, ...]:
        self._ensembles_chosen += 1
        candidates = self._candidates()
        if len(candidates.writable) < size:
            raise NotEnoughBookiesError(
                size, len(candidates.writable), candidates.writable, self._membership.readonly
            )
        return choose_spread_ensemble(
            self._config,
            candidates,
            size,
            write_quorum,
            ack_quorum,
            self._rng,
            turn=self._ensembles_chosen,
        )

    async def choose_replacements(
        self,
        ensemble: Sequence[str],
        failed: Collection[int],
        write_quorum: int,
        ack_quorum: int,
        *,
        tried: Sequence[str] = (),
        allow_quarantined: bool = False,
    ) -> tuple[dict[int, str], str | None]:
        """Choose bookies for as many failed indices as possible; if the rules forbid more, also return why.

        Args:
            tried: Bookies that failed the caller recently, the latest one last. They come after all others,
                in this order. Otherwise two dead bookies of one rack could replace each other until the retry
                timeout, and a healthy third one would never be tried.
            allow_quarantined: Treat quarantined bookies like others, because otherwise the writer would fail.
        """
        await self._locate_new()
        candidates = self._candidates()
        # To go from one bookie that refuses this client to the next would only change the ensemble.
        writable = frozenset(candidates.writable) - set(self._membership.refusing)
        candidates = attrs.evolve(candidates, writable=writable, tried=tried)
        if allow_quarantined:
            candidates = attrs.evolve(candidates, quarantined=())
        choose = partial(
            choose_spread_replacements,
            *(self._config, candidates, ensemble, failed, write_quorum, ack_quorum, self._rng),
        )
        if len(ensemble) <= CHOSEN_AT_ONCE_MAX:
            return choose()
        return await trio.to_thread.run_sync(choose)  # other tasks of the loop get their turns

    async def choose_adhering(
        self, ensemble: Sequence[str], write_quorum: int, ack_quorum: int
    ) -> dict[int, str]:
        """Choose as few replacements as possible for an ensemble that is not spread as the policy prescribes.

        Empty if no replacements of these writable bookies make it adhere.
        """
        await self._locate_new()
        return choose_adhering(
            self._config, self._candidates(), ensemble, write_quorum, ack_quorum, self._rng
        )

    async def located(self) -> Topology:
        """As ``topology``, after the locations of newly registered bookies were looked up."""
        await self._locate_new()
        return self.topology

    async def look_up(self, bookies: Collection[str]) -> dict[str, str]:
        """The locations of bookies as their source has them now, whatever the policy; nothing is remembered.

        Bookies that the source does not know are left out.

        Raises:
            LocationError: The source cannot be used now.
        """
        return await self._locator.locate(sorted(bookies))

    def choose_for_recovery(
        self,
        ensemble: Sequence[str],
        failed: Collection[int],
        write_quorum: int,
        ack_quorum: int,
        *,
        tried: Sequence[str] = (),
    ) -> dict[int, str]:
        """As ``choose_replacements``, without waiting for locations. A recovery accepts any ack quorum."""
        config = attrs.evolve(self._config, enforce_fault_domains=False)
        candidates = attrs.evolve(self._candidates(), tried=tried)
        chosen, _ = choose_spread_replacements(
            config, candidates, ensemble, failed, write_quorum, ack_quorum, self._rng
        )
        return chosen

    def ack_rule(self, write_quorum: int) -> AckRule | None:
        """The rule for an ack quorum besides its size; None if there is none.

        The results of the rule are valid until ``wait_location_change`` returns.
        """
        if not self._config.enforce_fault_domains:
            return None
        return lambda bookies: acks_span(bookies, self.topology, self._config, write_quorum)

    async def wait_location_change(self) -> None:
        """Return when a known location changes after the call."""
        await self._locations_changed.wait()

    def distance(self, bookie: str) -> int:
        """The distance of a bookie from this program; 0 is the nearest."""
        return 0 if self._config.policy is PlacementPolicy.RANDOM else self.topology.distance(bookie)

    async def run(self) -> None:
        """Look up locations and request free disk until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._config.policy is not PlacementPolicy.RANDOM:
                nursery.start_soon(self._follow_locations)
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

    async def _follow_locations(self) -> None:
        while True:
            with failure_domain("locations of bookies"):
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
            # A bookie that was away may have moved. Until that is known, it keeps its last location.
            returned = dict.fromkeys(registered - self._registered, now)
            self._locate_at = {b: at for b, at in self._locate_at.items() if b in registered} | returned
            self._registered = registered
            wanted = [bookie for bookie, at in self._locate_at.items() if at <= now]
            if not wanted:
                return
            found: dict[str, str] = {}
            try:
                found = await self._locator.locate(sorted(wanted))
            except LocationError as exc:
                logger.warning(
                    "the locations of %d bookies are unknown: %s",
                    len(wanted),
                    exc,
                    extra=event("bookie.locations_unknown", bookies=sorted(wanted), error=exc),
                )
            before = dict(self._locations)
            for bookie in wanted:
                location = found.get(bookie)
                if location is not None and self._is_usable(bookie, location):
                    self._locations[bookie] = location
                    del self._locate_at[bookie]
                else:
                    self._locate_at[bookie] = now + LOCATION_RETRY_S
            if self._locations != before:
                self._locations_changed.set()
                self._locations_changed = trio.Event()

    def _is_usable(self, bookie: str, location: str) -> bool:
        if self._config.policy is PlacementPolicy.REGION_AWARE and location.count("/") != 2:
            logger.warning(
                "bookie %s has the location %s; expected a region and a rack",
                bookie,
                location,
                extra=event("bookie.location_wrong", bookie=bookie, location=location),
            )
            return False
        return True

    # Free disk.

    async def _follow_free_disk(self) -> None:
        request_at: dict[str, float] = {}
        limiter = trio.CapacityLimiter(INFO_CALLS_MAX)
        while True:
            writable = self._membership.writable
            request_at = {bookie: request_at.get(bookie, 0.0) for bookie in writable}
            self._free_bytes = {b: free for b, free in self._free_bytes.items() if b in writable}
            now = trio.current_time()
            due = sorted(bookie for bookie, at in request_at.items() if at <= now)
            request_at |= dict.fromkeys(due, now + self._config.weight_retry_s)  # also after an error
            with failure_domain("free disk of bookies"):
                async with trio.open_nursery() as nursery:
                    for bookie in due:
                        nursery.start_soon(self._request_free_disk, bookie, limiter, request_at)
            next_at = min(request_at.values(), default=trio.current_time() + self._config.weight_retry_s)
            with trio.move_on_after(max(INFO_PAUSE_MIN_S, next_at - trio.current_time())):
                await self._membership.wait_change()

    async def _request_free_disk(
        self, bookie: str, limiter: trio.CapacityLimiter, request_at: dict[str, float]
    ) -> None:
        pause_s = self._config.weight_retry_s
        async with limiter:
            try:
                reply = await self._transport.call(bookie, BookieInfoRequest(total_disk_capacity=False))
            except BookieError as exc:
                logger.info(
                    "the free disk of a bookie is unknown: %s",
                    exc,
                    extra=event("bookie.free_disk_unknown", bookie=bookie, error=exc),
                )
            else:
                if (
                    isinstance(reply, BookieInfoReply)
                    and reply.code is Code.OK
                    and reply.free_disk_bytes is not None
                ):
                    self._free_bytes[bookie] = reply.free_disk_bytes
                    pause_s = self._config.weight_interval_s
        request_at[bookie] = trio.current_time() + pause_s
