"""Access control entries: their bytes, what they deny, and what a damaged one does."""

# covers: namespace/access_control/entries.py
# covers: namespace/access_control/nodes.py

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import dlog
from dlog import Denial
from ledger.metadata_store.memory import MemoryStore
from namespace.access_control.entries import AccessControlEntry, decode_entry, encode_entry
from namespace.bindings import resolve_binding
from namespace.policy import Policy, Right, Rule
from tests.fakes.dict_bookies import DictCluster, open_cluster
from tests.fakes.dict_namespace import open_on, read_all, write_segments

ROOT = "/ns/.acls"
ALL = frozenset(Denial)


@pytest.fixture
async def cluster() -> AsyncIterator[DictCluster]:
    async with open_cluster() as opened:
        yield opened


def entry(*denied: Denial) -> AccessControlEntry:
    return AccessControlEntry(frozenset(denied))


def test_the_bytes_are_those_of_apache() -> None:
    assert encode_entry(entry()) == (b'{"1":{"tf":0},"2":{"tf":0},"3":{"tf":0},"4":{"tf":0},"5":{"tf":0}}')
    assert decode_entry(b"") == decode_entry(b"{}") == entry()
    assert decode_entry(b'{"1":{"tf":1}}') == entry(Denial.WRITE)
    assert decode_entry(b'{"2":{"tf":1},"5":{"tf":0},"9":{"str":"new"}}') == entry(Denial.TRUNCATE)
    for each in Denial:
        assert decode_entry(encode_entry(entry(each))) == entry(each)
    assert decode_entry(encode_entry(AccessControlEntry(ALL))).denied == ALL


@pytest.mark.parametrize(
    "data", [b"corrupted", b"[]", b'{"1":1}', b'{"1":{"tf":"x"}}', b"\xff", b'{"1":{"tf":true}}']
)
def test_bytes_that_do_not_parse_are_no_entry(data: bytes) -> None:
    with pytest.raises(dlog.LogMetadataError, match="access control entry"):
        decode_entry(data)


Call = Callable[[dlog.Namespace], Awaitable[object]]


async def open_writer(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log"):
        pass


async def truncate_by_writer(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("log") as writer:
        await writer.truncate(dlog.DLSN(2, 0, 0))


CALLS: list[tuple[str, Call, set[Denial]]] = [
    ("open_writer", open_writer, {Denial.WRITE, Denial.ACQUIRE}),
    ("recover", lambda ns: ns.repair.recover("log"), {Denial.ACQUIRE}),
    ("repair", lambda ns: ns.repair.apply("log"), {Denial.ACQUIRE}),
    ("truncate", lambda ns: ns.truncate_log("log", dlog.DLSN(2, 0, 0)), {Denial.TRUNCATE}),
    ("writer truncates", truncate_by_writer, {Denial.TRUNCATE, Denial.WRITE, Denial.ACQUIRE}),
    ("set_retention", lambda ns: ns.retention.set("log", None), {Denial.TRUNCATE}),
    ("retain", lambda ns: ns.retention.apply("log"), {Denial.TRUNCATE}),
    ("seal", lambda ns: ns.seal_log("log"), {Denial.WRITE, Denial.ACQUIRE}),
    ("delete", lambda ns: ns.delete_log("log"), {Denial.DELETE}),
    ("read", lambda ns: read_all(ns, "log"), set()),
    ("check", lambda ns: ns.repair.check("log"), set()),
]


@pytest.mark.slow
@pytest.mark.parametrize("denial", list(Denial))
@pytest.mark.parametrize(("call", "needs"), [each[1:] for each in CALLS], ids=[each[0] for each in CALLS])
async def test_each_call_is_refused_by_the_denials_that_concern_it(
    cluster: DictCluster, call: Call, needs: set[Denial], denial: Denial
) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.access.enable()
        await write_segments(namespace, "log", 1)
        await namespace.access.set("log", frozenset({denial}))
        if denial in needs:
            with pytest.raises(dlog.AccessDeniedError, match=f"deny to {denial.name.lower()}"):
                await call(namespace)
            assert await namespace.log_exists("log")
        else:
            await call(namespace)


async def test_the_entry_of_a_log_replaces_the_default_at_once(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened, open_on(cluster) as admin:
        for each in (admin, opened):
            await each.namespace.access.enable()
        await write_segments(opened.namespace, "log", 1)
        await write_segments(opened.namespace, "other/log", 1)
        await admin.namespace.access.set(None, frozenset({Denial.DELETE}))
        for log in ("log", "other/log"):
            with pytest.raises(dlog.AccessDeniedError):
                await opened.namespace.delete_log(log)
        await admin.namespace.access.set("log", frozenset())
        found = await opened.namespace.access.entries()
        assert (found.default, found.logs, found.corrupt) == (entry(Denial.DELETE), {"log": entry()}, ())
        await opened.namespace.delete_log("log")
        with pytest.raises(dlog.InvalidLogNameError, match="several parts"):
            await admin.namespace.access.set("other/log", frozenset())
        await admin.namespace.access.set("log", None)
        await admin.namespace.access.set("log", None)
        await admin.namespace.access.set(None, None)
        await opened.namespace.delete_log("other/log")


@pytest.mark.slow
async def test_a_corrupt_entry_counts_as_missing_and_a_corrupt_default_changes_nothing(
    cluster: DictCluster,
) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.access.enable()
        await write_segments(namespace, "log", 1)
        await namespace.access.set(None, frozenset({Denial.DELETE}))
        await namespace.access.set("log", frozenset())
        await opened.store.put(f"{ROOT}/log", b"corrupted")
        with pytest.raises(dlog.AccessDeniedError):
            await namespace.delete_log("log")
        await opened.store.put(ROOT, b"corrupted")
        with pytest.raises(dlog.AccessDeniedError):
            await namespace.delete_log("log")
        assert (await namespace.access.entries()).corrupt == (ROOT, f"{ROOT}/log")
        await opened.store.delete(f"{ROOT}/log")
        await opened.store.delete(ROOT)
        await namespace.delete_log("log")
    async with open_on(cluster) as opened:
        await opened.namespace.access.enable()
        await opened.store.create(ROOT, b"corrupted")
        await write_segments(opened.namespace, "log", 1)  # no default before it: nothing is denied


async def test_a_denied_truncation_stops_the_retention_of_an_open_writer(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.access.enable()
        await write_segments(namespace, "log", 3)
        await namespace.retention.set("log", dlog.Retention.of(size_bytes=1))
        purges = dlog.WriterConfig(purge=True, visibility_delay_ms=0)
        for denied, expected in ((frozenset({Denial.TRUNCATE}), [1, 2, 3]), (None, [3])):
            await namespace.access.set("log", denied)
            async with namespace.open_writer("log", config=purges):
                pass  # closing waits for a purge
            assert [each.segment_seqno for each in await namespace.segments("log")] == expected


async def test_only_an_administrator_of_all_logs_changes_entries(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.access.enable()
        rules = (Rule("root", "*", frozenset({Right.ADMIN})), Rule("test", "l*", frozenset({Right.ADMIN})))
        await namespace.policy.set(Policy(rules))
        for call in (namespace.access.set("log", ALL), namespace.access.enable()):
            with pytest.raises(dlog.AccessDeniedError, match="whole namespace"):
                await call
        assert (await namespace.access.entries()).logs == {}


async def test_entries_of_logs_that_a_principal_may_not_read_are_left_out(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        namespace = opened.namespace
        await namespace.access.enable()
        for name in ("log", "secret"):
            await namespace.access.set(name, ALL)
        await opened.store.create(f"{ROOT}/damaged", b"?")
        found = await namespace.access.entries()
        assert (sorted(found.logs), found.corrupt) == (["log", "secret"], (f"{ROOT}/damaged",))
        rules = (Rule("root", "*", frozenset({Right.ADMIN})), Rule("test", "l*", frozenset({Right.ADMIN})))
        await namespace.policy.set(Policy(rules))
        found = await namespace.access.entries()
        assert (list(found.logs), found.corrupt) == (["log"], ())


async def test_a_namespace_without_a_place_for_entries_denies_nothing(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        with pytest.raises(dlog.ConfigError, match="dlog access enable"):
            await opened.namespace.access.entries()
        await opened.namespace.access.enable()
        await opened.namespace.access.enable()
        binding = await resolve_binding(opened.store, "/ns")
        assert (binding.acl_root_path, binding.ledgers_root) == (".acls", "/ledgers")
        found = await opened.namespace.access.entries()
        assert (found.default, found.logs) == (None, {})
    async with open_on(cluster, "/directory", bound=False) as directory:
        with pytest.raises(dlog.ConfigError, match="dlog policy"):
            await directory.namespace.access.enable()


async def test_two_administrators_do_not_overwrite_each_other(cluster: DictCluster) -> None:
    async with open_on(cluster) as opened:
        await opened.namespace.access.enable()
        await opened.namespace.access.set("log", frozenset())

        async def overtake(kind: str, path: str) -> None:
            if (kind, path) == ("put", f"{ROOT}/log"):
                await MemoryStore.put(opened.store, path, b"{}")

        opened.store.before = overtake
        with pytest.raises(dlog.AccessDeniedError, match="another administrator"):
            await opened.namespace.access.set("log", ALL)
        assert (await opened.store.get(f"{ROOT}/log")).value == b"{}"


async def test_a_store_that_is_away_is_no_permission(cluster: DictCluster) -> None:
    async with open_on(cluster, config=_impatient()) as opened:
        await opened.namespace.access.enable()
        await write_segments(opened.namespace, "log", 1)
        opened.store.is_cut = True
        with pytest.raises(dlog.LogUnavailableError):
            await opened.namespace.truncate_log("log", dlog.DLSN(2, 0, 0))


def _impatient() -> dlog.NamespaceConfig:
    return dlog.NamespaceConfig(
        writer=dlog.WriterConfig(retry_timeout_s=0.01, purge=False),
        reader=dlog.ReaderConfig(retry_timeout_s=0.01),
    ).for_scheme("distributedlog")
