"""The rights of a peer on a ledger, by the policy of the ledger's log.

The custom metadata of a ledger name its log (``ledger.policy.LogMark``). The policy of the log's namespace
has the rights of principals on it. Both are in the metadata store.

Inside: these reads, their limits, the decision, making decisions again in the background. Not inside: keeping
decisions, obeying them (``requests.permissions``), changing policies (``namespace.access_control.policies``).
Always: a policy or a mark that cannot be read grants nothing; a decision is at most ``AGE_S`` old when it is
returned.

Source: our own; docs/security.md, "Permissions at the bookie".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
import trio

from bookie.disk.token_bucket import TokenBucket
from bookie.errors import BookieConfigError
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.requests.permissions import (
    NO_SUCH_LEDGER,
    OUT_OF_REACH,
    Access,
    Decision,
    PeerPermissions,
    Permissions,
    PermissionsConfig,
)
from ledger.errors import LedgerMetadataError, MetadataFormatError, NoSuchLedgerError, PolicyError
from ledger.metadata_store.errors import MetadataError, NoNodeError
from ledger.policy import POLICY_NODE, UNMARKED, LogMark, Right, Rule, parse_policy
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import failure_domain
from ledger.runtime.tasks.task_errors import for_each

READS_AT_ONCE = 64
READS_OF_A_PEER = 8  # so that one identity does not hold up the others
READS_PER_S = 1000
TIMEOUT_S = 2.0  # of the wait for a place, and of the reads
POLICY_S = 1.0  # a policy is read again after this time
AGE_S = 3 * TIMEOUT_S + POLICY_S  # its own reads, the waits and reads of those decided with it, the policy
UNREACHABLE_S = 1.0  # no other read begins after one without a reply
REFRESHES_MAX = 100_000
REFRESHED_AT_ONCE = 16
_LOG_INTERVAL_S = 60.0

log = get_logger(__name__)


@attrs.frozen
class _Rules:
    """A policy, prepared for many decisions."""

    source: bytes  # as it is stored
    rules: tuple[tuple[Rule, Access], ...]
    restricts_unmarked: bool

    @classmethod
    def of(cls, source: bytes) -> _Rules:
        """Parse a stored policy; raises ``PolicyError``."""
        policy = parse_policy(source)
        # Every right includes reading. Committing moves a cursor in the metadata store, and no entry.
        rules = tuple(
            (rule, Access.WRITE if rule.includes(Right.WRITE) else Access.READ) for rule in policy.rules
        )
        return cls(source, rules, policy.restricts_unmarked)

    def access(self, principal: str, log: str) -> Access:
        return max(
            (access for rule, access in self.rules if rule.is_about(principal) and rule.covers(log)),
            default=Access.NONE,
        )


@attrs.frozen
class _Known:
    """The policy of a namespace, as it was read."""

    rules: _Rules | None  # None: there is none, everything is allowed
    error: PolicyError | None  # it does not parse: nothing is allowed
    read_at_s: float


@attrs.define(eq=False)
class LogPermissions:
    """Implements ``Decide`` with the metadata store of the current session."""

    nodes: ClusterNodes
    namespaces: tuple[str, ...]
    _known: dict[str, _Known] = attrs.field(factory=dict, init=False)
    _places: trio.CapacityLimiter = attrs.field(
        factory=lambda: trio.CapacityLimiter(READS_AT_ONCE), init=False
    )
    _places_of: dict[str, trio.CapacityLimiter] = attrs.field(factory=dict, init=False)
    _policy_lock: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _bucket: TokenBucket = attrs.field(factory=lambda: TokenBucket(READS_PER_S), init=False)
    _unreachable_until_s: float = attrs.field(default=float("-inf"), init=False)
    _logged_at_s: float = attrs.field(default=float("-inf"), init=False)
    _refreshes: dict[tuple[PeerPermissions, int], None] = attrs.field(factory=dict, init=False)
    _wake: trio.Event = attrs.field(factory=trio.Event, init=False)

    def permissions(self, config: PermissionsConfig) -> Permissions:
        """The permissions that sessions check. ``keep_fresh`` must run beside them."""
        return Permissions(
            self.decide,
            lifetime_s=config.lifetime_s - AGE_S,
            now_s=trio.current_time,
            refresh=self._refresh,
        )

    async def check_namespaces(self) -> None:
        """Raise ``BookieConfigError`` if a namespace does not exist; warn if it has no policy."""
        for namespace in self.namespaces:
            store = self.nodes.session()
            if await store.exists(namespace) is None:
                raise BookieConfigError(
                    f"policyNamespaces: the metadata store of this bookie has no node {namespace}. A bookie"
                    " that obeyed the policy of another path would let every peer in. Name the paths of the"
                    " namespaces, such as /messaging/shop"
                )
            if await store.exists(f"{namespace}/{POLICY_NODE}") is None:
                log.warning(
                    "namespace %s has no policy, so all peers may read and write its logs; `dlog policy set`"
                    " stores one",
                    namespace,
                )

    async def decide(self, principal: str, ledger_ids: Sequence[int]) -> Mapping[int, Decision]:
        """See ``Decide``."""
        decisions: dict[int, Decision] = {}

        async def decide_one(ledger_id: int) -> None:
            decisions[ledger_id] = await self._decide(principal, ledger_id, places)

        places = self._places_of.setdefault(principal, trio.CapacityLimiter(READS_OF_A_PEER))
        try:
            await for_each(decide_one, ledger_ids)
        finally:
            if not places.borrowed_tokens:
                self._places_of.pop(principal, None)
        return decisions

    async def keep_fresh(self) -> None:
        """Make decisions again that are used and become old, until cancelled."""
        while True:
            while not self._refreshes:
                self._wake = trio.Event()
                await self._wake.wait()
            due = [self._refreshes.popitem()[0] for _ in range(min(len(self._refreshes), REFRESHED_AT_ONCE))]
            is_reachable = True

            async def refresh(one: tuple[PeerPermissions, int]) -> None:
                nonlocal is_reachable
                peer, ledger_id = one
                decision = (await self.decide(peer.name, [ledger_id]))[ledger_id]
                if decision.is_lasting:
                    peer.keep(ledger_id, decision.access)
                elif decision is OUT_OF_REACH:
                    is_reachable = False
                else:
                    peer.forget(ledger_id)

            with failure_domain("refresh of permissions") as domain:
                await for_each(refresh, due)
            if domain.error is not None or not is_reachable:
                await trio.sleep(UNREACHABLE_S)

    def _refresh(self, peer: PeerPermissions, ledger_id: int) -> None:
        if len(self._refreshes) < REFRESHES_MAX:
            self._refreshes[peer, ledger_id] = None
            self._wake.set()

    async def _decide(self, principal: str, ledger_id: int, places: trio.CapacityLimiter) -> Decision:
        with trio.move_on_after(TIMEOUT_S) as waiting:
            async with places, self._places:
                await trio.sleep(self._bucket.take(1, trio.current_time()))
                waiting.deadline = math.inf  # the reads have a limit of their own
                return await self._read(principal, ledger_id)
        return OUT_OF_REACH

    async def _read(self, principal: str, ledger_id: int) -> Decision:
        if trio.current_time() < self._unreachable_until_s:
            return OUT_OF_REACH
        reason = f"no reply within {TIMEOUT_S:g} s"
        with trio.move_on_after(TIMEOUT_S):
            try:
                return Decision(await self._access(principal, await self._mark(ledger_id)))
            except (NoSuchLedgerError, LedgerMetadataError):
                return NO_SUCH_LEDGER
            except (MetadataFormatError, PolicyError) as exc:
                self._warn("nothing is allowed to %s in ledger %d: %s", principal, ledger_id, exc)
                return Decision(Access.NONE)
            except MetadataError as exc:
                reason = str(exc)
        self._unreachable_until_s = trio.current_time() + UNREACHABLE_S
        self._warn(
            "requests whose permissions are not known are refused with TOO_MANY_REQUESTS: the metadata store"
            " cannot be read (%s)",
            reason,
        )
        return OUT_OF_REACH

    async def _mark(self, ledger_id: int) -> LogMark | None:
        catalog = self.nodes.catalog
        try:
            found = await catalog.get(ledger_id)
        except NoSuchLedgerError:
            # This session's server may lag behind the one that created the ledger.
            found = await catalog.get_newest(ledger_id)
        return LogMark.of(found.metadata.custom)

    async def _access(self, principal: str, mark: LogMark | None) -> Access:
        if mark is not None and mark.namespace in self.namespaces:
            rules = await self._rules(mark.namespace)
            return Access.WRITE if rules is None else rules.access(principal, mark.log)
        granted = Access.WRITE
        for namespace in self.namespaces:
            rules = await self._rules(namespace)
            if rules is not None and rules.restricts_unmarked:
                granted = min(granted, rules.access(principal, UNMARKED))
        return granted

    async def _rules(self, namespace: str) -> _Rules | None:
        """The policy of a namespace; None if it has none. Raises ``PolicyError``, ``MetadataError``."""
        async with self._policy_lock:
            known = self._known.get(namespace)
            if known is None or trio.current_time() - known.read_at_s >= POLICY_S:
                known = self._known[namespace] = await self._read_policy(namespace, known)
        if known.error is not None:
            raise known.error
        return known.rules

    async def _read_policy(self, namespace: str, before: _Known | None) -> _Known:
        read_at_s, path = trio.current_time(), f"{namespace}/{POLICY_NODE}"
        store = self.nodes.session()
        await store.sync(path)
        try:
            source = (await store.get(path)).value
        except NoNodeError:
            return _Known(None, None, read_at_s)
        if before is not None and before.rules is not None and before.rules.source == source:
            return attrs.evolve(before, read_at_s=read_at_s)
        try:
            return _Known(_Rules.of(source), None, read_at_s)
        except PolicyError as exc:
            return _Known(None, exc, read_at_s)

    def _warn(self, text: str, *arguments: object) -> None:
        now_s = trio.current_time()
        if now_s - self._logged_at_s >= _LOG_INTERVAL_S:
            self._logged_at_s = now_s
            log.warning(text, *arguments)
