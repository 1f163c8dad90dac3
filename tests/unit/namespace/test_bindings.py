# covers: namespace/binding.py

from __future__ import annotations

import json

import attrs
import pytest

from dlog.errors import LogMetadataError, NamespaceNotBoundError
from ledger.metadata_store.errors import BadVersionError, NodeExistsError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.store import Stat
from namespace.binding import Binding, decode_binding, encode_binding, new_binding
from namespace.bindings import bind, resolve_binding
from tests.places import ROOT

BINDING = new_binding("zk1:2181,zk2:2181", "/ledgers")


def test_the_fields_of_a_binding_are_in_order() -> None:
    binding = Binding(
        bk_hosts="zk1:2181,zk2:2181",
        ledgers_root="/ledgers",
        bk_hosts_for_reader="zk1:2181,zk2:2181",
        dl_hosts_for_writer="zk1:2181,zk2:2181",
        dl_hosts_for_reader="zk1:2181,zk2:2181",
        acl_root_path=".acls",
        first_segment_seqno=1,
        federated=True,
    )
    data = encode_binding(binding)
    assert data.startswith(b'1\nBKDL\n{"1":{"str":"zk1:2181,zk2:2181"},"2":{"str":"/ledgers"},"3":{"tf":1},')
    assert data.endswith(b',"8":{"str":".acls"},"9":{"i64":1},"10":{"tf":1}}')
    assert decode_binding(data) == binding


def test_a_missing_field_has_a_default() -> None:
    binding = decode_binding(b'1\nBKDL\n{"1":{"str":"h"},"2":{"str":"/l"}}')
    assert binding.reader_bk_hosts == "h"
    assert binding.segment_seqno_first == 1
    assert (binding.sanity_check_txid, binding.encode_region_id, binding.federated) == (True, False, None)


def test_unknown_fields_and_line_breaks_are_ignored() -> None:
    assert decode_binding(b'1\nBKDL\n{"1":{"str":"h"},\n"2":{"str":"/l"},"11":{"i64":1}}').bk_hosts == "h"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "version ''"),
        (b"2\nBKDL\n{}", "version '2'"),
        (b"1\nXX\n{}", "type 'XX'"),
        (b"1\nBKDL\n", "not JSON"),
        (b"1\nBKDL\n" + b"[" * 100_000, "not JSON"),
        (b"1\nBKDL\n[]", "not an object"),
        (b'1\nBKDL\n{"1":{"str":"h"}}', "ledgers_root is missing"),
        (b'1\nBKDL\n{"1":{"str":""},"2":{"str":"/l"}}', "bk_hosts is missing"),
        (b'1\nBKDL\n{"1":"h","2":{"str":"/l"}}', "field 1"),
        (b'1\nBKDL\n{"1":{"str":5},"2":{"str":"/l"}}', "field 1"),
        (b'1\nBKDL\n{"1":{"str":"h"},"2":{"str":"/l"},"9":{"i64":99999999999999999999}}', "field 9"),
        (b'1\nBKDL\n{"1":{"str":"h"},"2":{"str":"/l"},"3":{"tf":true}}', "field 3"),
        (b"1\nBKDL\n\xff", "UTF-8"),
    ],
)
def test_an_invalid_binding_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(LogMetadataError, match=reason):
        decode_binding(data)


async def test_the_nearest_ancestor_with_data_decides() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await bind(store, "/messaging", BINDING)
        await store.create("/messaging/ns1/empty", parents=True)
        for path in ("/messaging", "/messaging/ns1", "/messaging/ns1/empty", "/messaging/missing/deeper"):
            assert await resolve_binding(store, path) == BINDING
        nearer = new_binding("other:2181", "/l2")
        await bind(store, "/messaging/ns1", nearer)
        assert await resolve_binding(store, "/messaging/ns1/empty") == nearer


async def test_a_path_without_any_binding_raises() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await store.create("/a/b", parents=True)
        with pytest.raises(NamespaceNotBoundError, match="neither /a/b nor a node above it"):
            await resolve_binding(store, "/a/b")


async def test_data_that_is_no_binding_stops_the_search() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await bind(store, "/a", BINDING)
        await store.create("/a/b", b"something else")
        with pytest.raises(LogMetadataError, match=r"^/a/b: "):
            await resolve_binding(store, "/a/b/c")
        assert (await store.get("/a/b")).value == b"something else"


async def test_a_binding_is_not_overwritten_by_accident() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await bind(store, "/a", BINDING)
        await bind(store, "/a", BINDING)
        assert (await store.get("/a")).stat.version == 0
        other = new_binding("other", "/l")
        with pytest.raises(NodeExistsError):
            await bind(store, "/a", other)
        await bind(store, "/a", other, overwrite=True)
        assert await resolve_binding(store, "/a") == other


async def test_two_clients_that_bind_an_empty_node_do_not_overwrite_each_other() -> None:
    tree = MemoryTree()

    class Slow(MemoryStore):
        async def put(self, path: str, value: bytes, **options: int) -> Stat:
            async with open_memory_store(tree) as other:
                await other.put(path, encode_binding(BINDING))
            return await super().put(path, value, **options)

    store = Slow(tree)
    await store.create("/a")
    with pytest.raises(BadVersionError):
        await bind(store, "/a", new_binding("other", "/l"))
    assert await resolve_binding(store, "/a") == BINDING
    await store.aclose()


GOLDEN = ROOT / "tests" / "golden" / "namespace" / "znodes.json"


def golden_nodes(path: str) -> dict[str, str]:
    """The nodes that Apache's ``bind`` with ``-fns`` left at a path and below, with their bytes in hex."""
    (line,) = [line for line in GOLDEN.read_text("utf-8").splitlines() if "three namespaces bound" in line]
    nodes = json.loads(line.rstrip(","))["nodes"]
    return {node["path"]: node["data"] for node in nodes if node["path"].startswith(path)}


async def test_a_federated_binding_leaves_the_nodes_that_java_leaves() -> None:
    async with open_memory_store(MemoryTree()) as store:
        binding = attrs.evolve(new_binding("127.0.0.1:27181", "/ledgers"), federated=True)
        await bind(store, "/golden/nsfed", binding)
        await bind(store, "/golden/nsfed", binding)  # repeated
        expected = golden_nodes("/golden/nsfed")
        assert set(expected) == {"/golden/nsfed", "/golden/nsfed/.subnamespaces"}
        assert {path: (await store.get(path)).value.hex() for path in expected} == expected
        assert (await store.children("/golden/nsfed/.subnamespaces")).names == ()


async def test_a_federated_binding_that_is_cut_is_repeated() -> None:
    tree = MemoryTree()
    binding = attrs.evolve(new_binding("zk:2181", "/ledgers"), federated=True)
    async with open_memory_store(tree) as store:
        await store.create("/ns/.subnamespaces", parents=True)  # where the first call ended
        with pytest.raises(NamespaceNotBoundError):
            await resolve_binding(store, "/ns")
        await bind(store, "/ns", binding)
        assert await resolve_binding(store, "/ns") == binding


async def test_a_bound_namespace_does_not_become_federated() -> None:
    async with open_memory_store(MemoryTree()) as store:
        plain = new_binding("zk:2181", "/ledgers")
        await bind(store, "/ns", plain)
        with pytest.raises(NodeExistsError, match="another binding"):
            await bind(store, "/ns", attrs.evolve(plain, federated=True))
        assert await resolve_binding(store, "/ns") == plain
        assert await store.exists("/ns/.subnamespaces") is None
