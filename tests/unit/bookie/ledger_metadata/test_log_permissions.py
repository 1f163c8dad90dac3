"""Decisions of a bookie by the policies in the metadata store."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from bookie.errors import BookieConfigError
from bookie.ledger_metadata.cluster_nodes import ClusterNodes
from bookie.ledger_metadata.log_permissions import (
    AGE_S,
    POLICY_S,
    READS_OF_A_PEER,
    REFRESHES_MAX,
    TIMEOUT_S,
    UNREACHABLE_S,
    LogPermissions,
)
from bookie.requests.permissions import NO_SUCH_LEDGER, OUT_OF_REACH, Access, Decision, PermissionsConfig
from ledger.auth.authentication import PeerIdentity
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.paths import Layout, ledger_path
from ledger.metadata import Ensemble, LedgerMetadata
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import MetadataStore
from ledger.policy import LOG_KEY, NAMESPACE_KEY, UNMARKED, LogMark, Policy, Right, Rule, encode_policy

ROOT = Rule("root", "*", frozenset({Right.ADMIN}))
SHOP = Policy(
    (
        ROOT,
        Rule("bookie-*", "*", frozenset({Right.WRITE})),
        Rule("shop-*", "orders/*", frozenset({Right.WRITE})),
        Rule("report", "orders/*", frozenset({Right.READ})),
        Rule("group", "orders/*", frozenset({Right.READ, Right.COMMIT}), "billing*"),
        Rule("group-?", "orders/[0-9]", frozenset({Right.WRITE})),  # these names, and no others
    )
)
METADATA = LedgerMetadata(
    ensemble_size=1, write_quorum=1, ack_quorum=1, password=b"", ensembles=(Ensemble(0, ("b:1",)),)
)
DENIED, READS, WRITES = (Decision(access) for access in Access)


class Cluster:
    """Ledgers and two namespaces: /shop with a policy, /free without one."""

    def __init__(self, store: MemoryStore) -> None:
        self.store: Any = store
        self.catalog = LedgerCatalog(store, "/ledgers", Layout.HIERARCHICAL)
        self.permissions = self.over(store)

    def over(self, store: Any, *namespaces: str) -> LogPermissions:
        names = namespaces or ("/shop", "/free")
        return LogPermissions(ClusterNodes(lambda: store, "/ledgers", Layout.HIERARCHICAL), names)

    async def ledger(self, ledger_id: int, custom: dict[str, bytes]) -> None:
        await self.catalog.create(attrs.evolve(METADATA, custom=custom), ledger_id)

    async def set_policy(self, policy: Policy | bytes | None, namespace: str = "/shop") -> None:
        path = f"{namespace}/.dlog-policy"
        if await self.store.exists(path) is not None:
            await self.store.delete(path)
        if policy is not None:
            value = policy if isinstance(policy, bytes) else encode_policy(policy)
            await self.store.create(path, value, parents=True)

    async def decide(self, principal: str, ledger_id: int) -> Decision:
        return (await self.permissions.decide(principal, [ledger_id]))[ledger_id]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with open_memory_store(MemoryTree()) as store:
        made = Cluster(store)
        await store.create("/free")
        await made.set_policy(SHOP)
        await made.ledger(1, LogMark("/shop", "orders/7").custom)
        await made.ledger(2, LogMark("/free", "orders/7").custom)
        await made.ledger(3, {})
        await made.ledger(4, LogMark("/elsewhere", "orders/7").custom)
        yield made


@pytest.mark.parametrize(
    ("principal", "decision"),
    [
        ("root", WRITES),
        ("bookie-3", WRITES),
        ("shop-1", WRITES),
        ("report", READS),
        ("group", READS),
        ("group-1", DENIED),
        ("group-?", DENIED),
        ("stranger", DENIED),
        ("", DENIED),
        ("Report", DENIED),
        ("report\n", DENIED),
    ],
)
async def test_the_policy_of_the_ledgers_log_decides(
    cluster: Cluster, principal: str, decision: Decision
) -> None:
    assert await cluster.decide(principal, 1) == decision
    assert await cluster.decide(principal, 2) == WRITES  # its namespace has no policy
    assert await cluster.decide(principal, 3) == WRITES  # no rule restricts ledgers without a mark
    assert await cluster.decide(principal, 4) == WRITES  # this bookie does not obey that policy


async def test_a_rule_for_unmarked_ledgers_closes_them_to_all_others(cluster: Cluster) -> None:
    await cluster.set_policy(Policy((*SHOP.rules, Rule("java", UNMARKED, frozenset({Right.READ})))))
    for ledger_id in (3, 4):
        assert await cluster.decide("root", ledger_id) == WRITES  # its logs are "*"
        assert await cluster.decide("java", ledger_id) == READS
        assert await cluster.decide("shop-1", ledger_id) == DENIED
    assert await cluster.decide("shop-1", 1) == WRITES
    await cluster.set_policy(Policy((ROOT, Rule("shop-1", UNMARKED, frozenset({Right.READ})))), "/free")
    cluster.permissions = cluster.over(cluster.store)
    for principal in ("java", "shop-1"):  # each of the policies must grant it
        assert await cluster.decide(principal, 3) == DENIED


async def test_a_ledger_without_metadata_is_nobodys(cluster: Cluster) -> None:
    for ledger_id in (9, -1, -(2**63)):
        assert await cluster.decide("root", ledger_id) is NO_SUCH_LEDGER
    await cluster.ledger(9, LogMark("/shop", "orders/7").custom)
    assert await cluster.decide("root", 9) == WRITES


async def test_a_ledger_of_a_moment_ago_is_found_on_a_server_that_lags_behind(cluster: Cluster) -> None:
    class Lagging:
        synced = False

        async def get(self, path: str, **more: object) -> object:
            if not self.synced and path.startswith("/ledgers"):
                return await cluster.store.get("/ledgers/not-yet")
            return await cluster.store.get(path)

        async def sync(self, path: str) -> None:
            self.synced = True

    cluster.permissions = cluster.over(Lagging())
    assert await cluster.decide("shop-1", 1) == WRITES


@pytest.mark.parametrize(
    "custom", [{NAMESPACE_KEY: b"/shop"}, {LOG_KEY: b"orders/7"}, {NAMESPACE_KEY: b"/shop", LOG_KEY: b"\xff"}]
)
async def test_half_a_mark_grants_nothing(cluster: Cluster, custom: dict[str, bytes]) -> None:
    await cluster.ledger(9, custom)
    assert await cluster.decide("root", 9) == DENIED


async def test_damaged_metadata_grant_nothing(cluster: Cluster) -> None:
    await cluster.store.put(ledger_path("/ledgers", Layout.HIERARCHICAL, 1), b"damaged")
    assert await cluster.decide("root", 1) == DENIED


@pytest.mark.parametrize("policy", [b"", b"{}", b"\xff", b'{"version": 2, "rules": []}'])
async def test_a_policy_that_does_not_parse_grants_nothing(
    cluster: Cluster, policy: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.set_policy(policy)
    with caplog.at_level(logging.WARNING):
        assert await cluster.decide("root", 1) == DENIED
    assert "nothing is allowed to root in ledger 1" in caplog.text
    assert await cluster.decide("root", 3) == DENIED  # it may have a rule for unmarked ledgers
    assert await cluster.decide("root", 2) == WRITES


async def test_another_policy_counts_after_a_second(cluster: Cluster, autojump_clock: MockClock) -> None:
    assert await cluster.decide("stranger", 1) == DENIED
    await cluster.set_policy(Policy((ROOT, Rule("stranger", "*", frozenset({Right.READ})))))
    await trio.sleep(POLICY_S)
    assert await cluster.decide("stranger", 1) == READS
    assert await cluster.decide("shop-1", 1) == DENIED
    await cluster.set_policy(None)
    await trio.sleep(POLICY_S)
    assert await cluster.decide("shop-1", 1) == WRITES


# A store that cannot be read


class SilentStore:
    """Never replies."""

    def __init__(self) -> None:
        self.reads = 0

    async def get(self, *args: object, **kwargs: object) -> None:
        self.reads += 1
        await trio.sleep_forever()

    sync = exists = get


async def test_a_store_that_does_not_reply_grants_nothing_and_holds_few_requests(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    silent = SilentStore()
    cluster.permissions = cluster.over(silent)
    began_s = trio.current_time()
    assert await cluster.decide("root", 1) is OUT_OF_REACH
    assert trio.current_time() - began_s == TIMEOUT_S
    for ledger_id in range(2, 100):
        assert await cluster.decide("root", ledger_id) is OUT_OF_REACH
    assert trio.current_time() - began_s == TIMEOUT_S  # these were refused at once
    assert silent.reads == 1
    await trio.sleep(UNREACHABLE_S)
    assert await cluster.decide("root", 1) is OUT_OF_REACH
    assert silent.reads == 2


@pytest.mark.parametrize("after", range(4))
async def test_an_error_of_the_store_at_any_read_grants_nothing(cluster: Cluster, after: int) -> None:
    calls = 0

    class Failing:
        def __getattr__(self, name: str) -> Any:
            async def call(*args: Any, **more: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > after:
                    raise ConnectionLostError("/x")
                return await getattr(cluster.store, name)(*args, **more)

            return call

    cluster.permissions = cluster.over(Failing())
    for principal in ("shop-1", "stranger"):
        decision = await cluster.decide(principal, 1)
        assert decision is OUT_OF_REACH if after < 3 else decision in (WRITES, DENIED, OUT_OF_REACH)
        if decision is OUT_OF_REACH:
            assert (decision.access, decision.is_lasting) == (Access.NONE, False)


async def test_an_identity_that_asks_for_many_ledgers_does_not_hold_up_another_one(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    class Slow:
        def __getattr__(self, name: str) -> Any:
            async def call(*args: Any, **more: Any) -> Any:
                await trio.sleep(0.1)
                return await getattr(cluster.store, name)(*args, **more)

            return call

    cluster.permissions = cluster.over(Slow())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.permissions.decide, "stranger", range(100, 100 + 100 * READS_OF_A_PEER))
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        assert await cluster.decide("shop-1", 1) == WRITES
        assert trio.current_time() - began_s < 1
        nursery.cancel_scope.cancel()


# Decisions that become old


async def test_a_decision_in_use_is_made_again_in_the_background(
    cluster: Cluster, autojump_clock: MockClock
) -> None:
    lifetime_s = 60.0
    permissions = cluster.permissions.permissions(
        PermissionsConfig(namespaces=("/shop",), lifetime_s=lifetime_s)
    )
    peer = permissions.of(PeerIdentity("shop-1", "sasl"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.permissions.keep_fresh)
        peer.keep(1, (await cluster.decide("shop-1", 1)).access)
        changed_s = trio.current_time()
        await cluster.set_policy(Policy((ROOT,)))
        while True:
            peer.turn()
            access = peer.recent.get(1)
            if access is None:
                access = peer.find_older(1)
            assert access is not None  # no request waits
            if access is Access.NONE:
                break
            assert trio.current_time() - changed_s <= lifetime_s
            await trio.sleep(0.5)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_ledger_that_is_deleted_is_forgotten_and_an_outage_keeps_what_is_not_too_old(
    cluster: Cluster, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    permissions = cluster.permissions.permissions(PermissionsConfig(namespaces=("/shop",), lifetime_s=60))
    peer = permissions.of(PeerIdentity("shop-1", "sasl"))
    asked = 0
    decide = LogPermissions.decide

    async def counted(self: LogPermissions, principal: str, ledger_ids: Sequence[int]) -> Any:
        nonlocal asked
        asked += 1
        return await decide(self, principal, ledger_ids)

    monkeypatch.setattr(LogPermissions, "decide", counted)
    store: Any = cluster.store
    cluster.permissions.nodes = attrs.evolve(cluster.permissions.nodes, session=lambda: store)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.permissions.keep_fresh)
        for ledger_id in (1, 9):
            peer.keep(ledger_id, Access.WRITE)
        await trio.sleep(permissions.period_s)
        peer.turn()
        assert peer.find_older(9) is Access.WRITE
        await trio.sleep(1)
        assert peer.find_older(9) is None  # no such ledger
        store = SilentStore()
        began_s, asked = trio.current_time(), 0
        while peer.find_older(1) is Access.WRITE:  # as each request does
            await trio.sleep(0.01)
            peer.turn()
        assert trio.current_time() - began_s <= permissions.period_s + 1
        assert asked <= permissions.period_s / UNREACHABLE_S + 1  # not once for each request
        assert store.reads <= permissions.period_s / TIMEOUT_S + 1
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_decisions_to_make_again_are_bounded(cluster: Cluster) -> None:
    permissions = cluster.permissions.permissions(PermissionsConfig(namespaces=("/shop",)))
    peer = permissions.of(PeerIdentity("shop-1", "sasl"))
    for ledger_id in range(REFRESHES_MAX + 10):
        permissions.refresh(peer, ledger_id)
    assert len(cluster.permissions._refreshes) == REFRESHES_MAX


def test_the_age_of_a_decision_counts_in_its_lifetime() -> None:
    async def never() -> MetadataStore:
        raise AssertionError

    made = LogPermissions(ClusterNodes(never, "/ledgers", Layout.HIERARCHICAL), ("/shop",))  # type: ignore[arg-type]

    async def main() -> float:
        return made.permissions(PermissionsConfig(namespaces=("/shop",), lifetime_s=60)).period_s

    assert 2 * trio.run(main) + AGE_S <= 60


# The start


async def test_a_namespace_that_does_not_exist_stops_the_start(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await cluster.permissions.check_namespaces()
    assert "namespace /free has no policy" in caplog.text
    assert "/shop" not in caplog.text
    with pytest.raises(BookieConfigError, match="no node /sohp"):
        await cluster.over(cluster.store, "/shop", "/sohp").check_namespaces()
