"""Each node of a metadata store x bad values: every operation that may read it ends with an error of ours.

A node that exists after typical work is replaced by each value. Then the operations of the ledger client
and of the namespace run, if they use the node. Each succeeds or raises an error of ours, and none hangs.
Once the good value is back everything works again.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

import dlog
from dlog.context import NamespaceContext
from dlog.shards.creation import create_sharded_log, delete_sharded_log
from dlog.shards.writer import open_sharded_writer
from ledger.catalog.catalog import open_catalog
from ledger.catalog.cluster_backup import check_restored, read_backup
from ledger.client import LedgerClient, open_ledger_client
from ledger.decommission.evacuation import planned_evacuations
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError, NodeExistsError, NoNodeError
from ledger.metadata_store.memory import MemorySession, MemoryStore, MemoryTree
from ledger.metadata_store.store import MetadataStore
from ledger.replication.config import ReplicationConfig
from ledger.replication.election import current_auditor
from ledger.replication.ledger_restorer import LedgerRestorer
from ledger.replication.marks import RegularCheck, UnderReplicatedLedgers
from namespace.binding import new_binding
from namespace.bindings import bind, resolve_binding
from namespace.policy import Policy, Right, Rule
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.property.test_hostile_bookies import again, run_case

OURS = (dlog.DLogError, LedgerError, MetadataError, TimeoutError)
WITHIN_S = 600.0  # of the mock clock
PATH = "/shop"
CONFIG = dlog.NamespaceConfig(
    ensemble_size=1,
    write_quorum=1,
    ack_quorum=1,
    writer=dlog.WriterConfig(segment_bytes_max=300, entry_bytes_target=100, retry_timeout_s=5),
    reader=dlog.ReaderConfig(relist_interval_s=1),
)
V3 = b"BookieMetadataFormatVersion\t3\n"
BAD: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe\x80",
    "0": b"0",
    "-1": b"-1",
    "2^31": b"2147483648",
    "2^63-1": b"9223372036854775807",
    "2^63": b"9223372036854775808",
    "5,000 digits": b"9" * 5000,
    "a number of another script": "²٣".encode(),
    "a wrong message": b"\x08\x96\x01\x12\x07testing",
    "a message cut off": b"\x0a\xff\xff\xff\x0f\x01",
    "a message without its fields": V3 + b"\x02\x08\x03",
    "a message that contradicts itself": V3 + b"\x0c\x08\x02\x10\x01\x18\x00\x20\x00\x28\x01\x32\x00",
    "a length beyond the bytes": V3 + b"\xff\xff\xff\xff\x0f",
    "broken lines": b"BookieMetadataFormatVersion\t1\n2\n3\nx\t\n\t\tCLOSED",
    "lines of another version": b"9\nBKDL\n{}",
    "the largest value": bytes(983_040),
    "JSON": b'{"1":{"i64":9223372036854775808},"2":[null,[[]]]}',
    "deep JSON": b"[" * 100_000,
    "fields": b"3;2;-9;9223372036854775808;;;;\x00",
    "NUL": b"a\x00b\x00\n\x00",
    "text of protobuf": b'replica: "\\377"\nctime: -1\nbookieId: "\\377"',
}
BAD_NAMES = (
    *(
        "²",
        "\u0667",
        "-1",
        "0",
        "x",
        "9" * 25,
        "0000000000",
        "00000000000²",
        "%zz",
        "a_b_c_d_e",
        " ",
        "a:b:c",
    ),
    *("L", "L²", "L99999999999999999999", "L0000000007", "ID-²", "HOB-²", "HOB-9999999999", "V_", "V_²"),
    *("V_-1", "urL", "urL000000000²", "urL9999999999999999999999", "urLock-²", "readonly", "available"),
    *("inprogress", "inprogress_²", "inprogress_9999999999999999999", "logrecs_", "logrecs_1_2_3"),
    *(
        "logrecs_9999999999999999999",
        "logrecs_00000000000000000²",
        "member",
        "member_a_s²_1",
        "member_%_s1_x",
    ),
    *(
        "member_%_s1_x",
        "<default>",
        "shard-²",
        "shard-00001",
        "...",
        "b1",
        "b1:²",
        "b1:99999",
        "[::1",
        "locks",
        "ledgers",
    ),
)
NAMES = {  # a group of like nodes: the first one stands for all
    r"/ledgers/available/[^/]+": "bookie",
    r"/ledgers/00/\d{4}/L\d+": "ledger",
    r".*/ledgers/inprogress.*": "segment in progress",
    r"(.*)/ledgers/logrecs_\d+_\d+": "complete segment",
    r".*/urL\d+": "mark",
    r".*/urLock.*|.*/locks/urL\d+": "lock of a mark",
    r".*/member_\d+.*": "member of a lock",
}


def kind_of(path: str) -> str:
    return next((name for pattern, name in NAMES.items() if re.fullmatch(pattern, path)), path)


@attrs.frozen
class Place:
    """A cluster, a client and a namespace, as one program has them."""

    cluster: DictCluster
    store: MemoryStore
    client: LedgerClient
    namespace: dlog.Namespace
    ledger_ids: tuple[int, ...]

    def names(self) -> list[str]:
        """The nodes, one of each kind."""
        kinds: dict[str, str] = {}
        for path in sorted(self.cluster.tree._nodes):
            if path != "/":
                kinds.setdefault(kind_of(path), path)
        return list(kinds.values())


def namespace_of(
    store: MetadataStore, client: LedgerClient, config: dlog.NamespaceConfig = CONFIG
) -> dlog.Namespace:
    return dlog.Namespace(
        NamespaceContext(
            "distributedlog://zk1/shop",
            store,
            client,
            PATH,
            config.for_scheme("distributedlog"),
            client_id="sweep",
        )
    )


@asynccontextmanager
async def open_place() -> AsyncIterator[Place]:
    """After typical work: a binding, logs with segments, cursors, a policy, properties, marks, a rename."""
    async with open_cluster(3) as cluster:
        store = MemoryStore(cluster.tree)
        await bind(store, PATH, new_binding("zk1", "/ledgers"))
        for node, value in (
            ("INSTANCEID", b"1c2d"),
            ("cookies/b1:1", b'4\nbookieHost: "b1:1"\njournalDir: "/j"\nledgerDirs: "1\\t/l"\n'),
            ("auditorelection/V_0000000001", b'bookieId: "b1:1"\n'),
        ):
            await store.create(f"/ledgers/{node}", value, parents=True)
        async with open_ledger_client(store, cluster.dial) as client:
            namespace = namespace_of(store, client)
            for log in ("orders", "old"):
                async with namespace.open_writer(log, create=True) as writer:
                    for number in range(12):
                        dlsn = await writer.append(b"%d" % number * 20)
            await namespace.cursors("orders").set("billing", dlsn)
            await namespace.retention.set("orders", dlog.Retention(age_s=86_400))
            await namespace.properties.change("orders", {"owner": "team"})
            await namespace.rename_log("old", "new")
            await create_sharded_log(namespace, "sharded", 2)
            await namespace.policy.set(Policy((Rule("sweep", "*", frozenset(Right)),)))
            ledger = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await ledger.append(b"one")
            ledger.abandon()
            marks = UnderReplicatedLedgers(store, "/ledgers")
            await marks.prepare()
            await marks.init_recovery_delay(3)
            for check in RegularCheck:
                await marks.set_checked(check)
            await marks.mark(ledger.ledger_id, ["b9:1"])
            ids = tuple(await client.ledger_ids())
            yield Place(cluster, store, client, namespace, ids)
        await store.aclose()


async def read_log(namespace: dlog.Namespace) -> None:
    async with namespace.open_reader("orders", follow=False) as reader:
        async for _ in reader:
            pass


async def read_by_cursor(namespace: dlog.Namespace) -> None:
    async with namespace.open_reader("orders", cursor="billing", follow=False) as reader:
        async for record in reader:
            await reader.commit(record.dlsn)


async def write_shards(namespace: dlog.Namespace) -> None:
    async with open_sharded_writer(namespace, "sharded", lock_timeout_s=0) as writer:
        await writer.append(b"key", b"more")


async def write_log(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("orders", lock_timeout_s=0) as writer:
        await writer.append(b"more")


async def listed(found: AsyncIterator[object]) -> list[object]:
    return [one async for one in found]


def operations(place: Place) -> dict[str, Callable[[], Awaitable[object]]]:
    """All that read nodes. A fresh client, store and namespace read them again."""
    store, client, namespace = place.store, place.client, place.namespace
    marks = UnderReplicatedLedgers(store, "/ledgers")
    restorer = LedgerRestorer(client.context, store, ReplicationConfig(), lock_path=marks.lock_path)

    async def open_all() -> None:
        async with open_ledger_client(MemoryStore(place.cluster.tree), place.cluster.dial) as fresh:
            await read_log(namespace_of(fresh.context.catalog.store, fresh))

    async def open_ledgers() -> None:
        for ledger_id in place.ledger_ids:
            await (await client.open(ledger_id, recover=ledger_id == place.ledger_ids[-1])).close()

    async def restore() -> None:
        for ledger_id in place.ledger_ids:
            await restorer.restore(ledger_id)

    async def backup() -> None:
        await read_backup(store, "/ledgers", [PATH], now_ms=0)
        await check_restored(store, "/ledgers")

    async def take() -> None:
        if (taken := await marks.take()) is not None:
            await marks.release(taken)

    async def mark() -> None:
        await marks.mark(place.ledger_ids[-1], ["b8:1"])

    async def create() -> None:
        await (await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)).close()

    return {
        "binding": lambda: resolve_binding(store, PATH),
        "catalog": lambda: open_catalog(store, "/ledgers"),
        "client": open_all,
        "ledgers": client.ledger_ids,
        "open": open_ledgers,
        "create": create,
        "restore": restore,
        "marked": marks.marked,
        "take": take,
        "mark": mark,
        "prepare": marks.prepare,
        "delay": marks.recovery_delay,
        "checked": lambda: marks.checked_ms(RegularCheck.READS),
        "auditor": lambda: current_auditor(store, "/ledgers"),
        "planned": lambda: listed(planned_evacuations(client.context, ["b1:1"])),
        "backup": backup,
        "list": namespace.list_logs,
        "describe": lambda: namespace.describe_log("orders"),
        "describe new": lambda: namespace.describe_log("new"),
        "segments": lambda: namespace.segments("orders"),
        "last": lambda: namespace.last_dlsn("orders"),
        "retention": lambda: namespace.retention.get("orders"),
        "properties": lambda: namespace.properties.get("orders"),
        "policy": namespace.policy.get,
        "cursors": lambda: namespace.cursors("orders").list(),
        "access": namespace.access.entries,
        "check": lambda: namespace.repair.check("orders"),
        "verify": lambda: namespace.repair.verify("orders"),
        "orphans": namespace.repair.find_orphans,
        "read": lambda: read_log(namespace),
        "read by cursor": lambda: read_by_cursor(namespace),
        "write": lambda: write_log(namespace),
        "write shards": lambda: write_shards(namespace),
        "delete shards": lambda: delete_sharded_log(namespace, "missing"),
        "last batch": lambda: namespace.batches.last("s", "orders"),
        "purge": lambda: namespace.purge_log("orders", dry_run=True),
        "rename": lambda: namespace.rename_log("orders", "new"),
    }


def copied(nodes: dict[str, Any]) -> dict[str, Any]:
    return {path: attrs.evolve(node, children=set(node.children)) for path, node in nodes.items()}


@attrs.define
class Image:
    """The nodes of a tree, to put them back."""

    nodes: dict[str, Any]

    @staticmethod
    def of(tree: MemoryTree) -> Image:
        return Image(copied(tree._nodes))

    def put_back(self, tree: MemoryTree) -> None:
        tree._nodes.clear()
        tree._nodes.update(copied(self.nodes))


@contextmanager
def paths_used() -> Iterator[set[str]]:
    """The paths that any session reads, writes or checks in the block."""
    used: set[str] = set()

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(session: MemorySession, path: Any, *rest: Any, **named: Any) -> Any:
            used.update([path] if isinstance(path, str) else [each.path for each in path])
            return call(session, path, *rest, **named)

        return noted

    with ExitStack() as stack:
        for name in ("get", "exists", "children", "create", "put", "delete", "commit"):
            call = getattr(MemorySession, name)
            stack.enter_context(patch.object(MemorySession, name, noting(call)))
        yield used


async def users_of_nodes(place: Place) -> dict[str, set[str]]:
    """The paths that each operation uses, itself or by a task that a change of any node wakes.

    An operation that never asks for a node cannot tell a bad value from a good one.
    """
    image, users = Image.of(place.cluster.tree), dict[str, set[str]]()
    for name, operation in operations(place).items():
        for path, node in image.nodes.items():
            if path in place.cluster.tree._nodes:
                await place.store.put(path, node.value)  # so that whoever watches reads it in the block
        with paths_used() as users[name]:
            await trio.testing.wait_all_tasks_blocked()
            with suppress(*OURS):
                await operation()
    image.put_back(place.cluster.tree)
    return users


async def swept(place: Place, path: str, value: bytes, what: str, names: set[str]) -> list[str]:
    """The operations of these that did not keep to the rule with this value in the node."""

    async def damage() -> None:
        await place.store.put(path, value) if await place.store.exists(path) else None

    return await tried(place, damage, f"{path} = {what}", names)


async def tried(place: Place, damage: Callable[[], Awaitable[None]], what: str, names: set[str]) -> list[str]:
    """The operations of these that did not keep to the rule, each after this damage."""
    wrong = []
    for name, operation in operations(place).items():
        if name not in names:
            continue
        if place.store.state.value != "connected":
            return [f"{what}: the session ended before {name}"]
        await damage()
        try:
            with trio.fail_after(WITHIN_S):
                await operation()
        except OURS as exc:
            if isinstance(exc, trio.TooSlowError):
                wrong.append(f"{what}: {name} hangs")
        except Exception as exc:
            wrong.append(f"{what}: {name} raises {exc!r:.200}")
    return wrong


async def sweep_nodes(values_of: Callable[[int], list[str]]) -> None:
    async with open_place() as place:
        image, wrong = Image.of(place.cluster.tree), list[str]()
        nodes, users = place.names(), await users_of_nodes(place)
        assert len(nodes) > 25, nodes
        for number, path in enumerate(nodes):
            names = {name for name, used in users.items() if path in used}
            for what in values_of(number):
                wrong += await swept(place, path, BAD[what], what, names)
                image.put_back(place.cluster.tree)
        assert wrong == [], "\n".join(wrong)
        # The same client and namespace work on.
        await read_log(place.namespace)
        await write_log(place.namespace)
        assert place.store.state.value == "connected"


@pytest.mark.slow
async def test_some_bad_values_of_each_node_raise_no_other_error_than_ours(
    autojump_clock: MockClock,
) -> None:
    names = list(BAD)
    await sweep_nodes(lambda number: [names[(5 * number) % len(names)]])


@pytest.mark.slow
@pytest.mark.parametrize("what", BAD)
async def test_a_bad_value_of_each_node_raises_no_other_error_than_ours(
    what: str, autojump_clock: MockClock
) -> None:
    await sweep_nodes(lambda _number: [what])


@pytest.mark.slow
async def test_bad_names_below_each_node_raise_no_other_error_than_ours(autojump_clock: MockClock) -> None:
    async with open_place() as place:
        image, wrong = Image.of(place.cluster.tree), list[str]()
        parents = sorted({path.rpartition("/")[0] for path in image.nodes if path.count("/") > 1})
        assert len(parents) > 20, parents
        users = await users_of_nodes(place)
        for parent in parents:
            names = {
                name
                for name, used in users.items()
                if any(path == parent or path.rpartition("/")[0] == parent for path in used)
            }

            async def damage(parent: str = parent) -> None:
                for name in BAD_NAMES:
                    with suppress(NodeExistsError, NoNodeError):
                        await place.store.create(f"{parent}/{name}", b"1")

            wrong += await tried(place, damage, f"names below {parent}", names)
            image.put_back(place.cluster.tree)
        assert wrong == [], "\n".join(wrong)
        await read_log(place.namespace)
        await write_log(place.namespace)


_FRAMES = 1000  # of a sweep's count, for one value in each node


def sweep(seed: int, count: int) -> list[str]:
    """Another bad value in each node, for each part of ``count``; the reports of what failed."""
    reports = []
    for number in range(max(1, count // _FRAMES)):
        rng = random.Random(f"{seed} {number}")
        report = run_case(lambda: sweep_nodes(lambda _: [rng.choice(list(BAD))]))  # noqa: B023
        if report is not None:
            reports.append(again(__name__, seed, count, f"case {number}: {report}"))
    return reports
