"""The policy of a namespace: its decision, its stored form, and a namespace that obeys it."""

# covers: namespace/access_control/policies.py

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import dlog
from dlog.cli.main import main
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from namespace.access_control.policies import Permissions
from namespace.policy import Policy, Right, Rule, decode_policy, encode_policy, parse_policy

READ, WRITE, ADMIN = frozenset({Right.READ}), frozenset({Right.WRITE}), frozenset({Right.ADMIN})
POLICY = Policy(
    (
        Rule("root", "*", ADMIN),
        Rule("shop-*", "shop/*", WRITE),
        Rule("shop-7", "audit", READ),
        Rule("*", "public", READ),
        Rule("billing", "shop/*", frozenset({Right.COMMIT}), "billing*"),
    )
)


@pytest.mark.parametrize(
    ("principal", "log", "allowed"),
    [
        ("root", "anything", "read commit write admin"),
        ("shop-1", "shop/orders", "read write"),
        ("shop-1", "shop/a/b", "read write"),
        ("shop-1", "other", ""),
        ("shop-1", "audit", ""),
        ("shop-7", "audit", "read"),
        ("SHOP-7", "audit", ""),
        ("stranger", "public", "read"),
        ("billing", "shop/orders", "read"),  # and some cursors
        ("stranger", "shop/orders", ""),
        ("", "shop/orders", ""),
    ],
)
def test_what_no_rule_grants_is_denied(principal: str, log: str, allowed: str) -> None:
    found = [right.value for right in Right if POLICY.allows(principal, log, right)]
    assert found == allowed.split()
    assert POLICY.may_change_policy(principal) == (principal == "root")


def test_a_policy_survives_its_stored_form() -> None:
    assert decode_policy(encode_policy(POLICY)) == POLICY


RULE = {"principal": "a", "logs": "*", "rights": ["admin"]}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "an object with the keys"),
        ({"version": 1}, "an object with the keys"),
        ({"version": 2, "rules": [RULE]}, "version 2"),
        ({"version": 1, "rules": {}}, "a list"),
        ({"version": 1, "rules": []}, "never be changed"),
        ({"version": 1, "rules": [RULE | {"logs": "shop/*"}]}, "never be changed"),
        ({"version": 1, "rules": [RULE | {"rights": ["write"]}]}, "never be changed"),
        ({"version": 1, "rules": [RULE, {"principal": "a"}]}, "rule 2"),
        ({"version": 1, "rules": [RULE | {"deny": True}]}, "rule 1"),
        ({"version": 1, "rules": [RULE | {"principal": ""}]}, "1 to 255 characters"),
        ({"version": 1, "rules": [RULE | {"logs": "x" * 256}]}, "1 to 255 characters"),
        ({"version": 1, "rules": [RULE | {"rights": []}]}, "is a list of"),
        ({"version": 1, "rules": [RULE | {"rights": "admin"}]}, "is a list of"),
        ({"version": 1, "rules": [RULE | {"rights": ["root"]}]}, "unknown right 'root'"),
        ({"version": 1, "rules": [RULE, RULE | {"cursors": "b*"}]}, "rule 2: .*names cursors"),
        ({"version": 1, "rules": [RULE, RULE | {"rights": ["read"], "cursors": "b"}]}, "names cursors"),
        ({"version": 1, "rules": [RULE, RULE | {"rights": ["commit"], "cursors": ""}]}, "1 to 255"),
        ({"version": 1, "rules": [RULE, RULE | {"rights": ["commit"], "cursors": None}]}, "1 to 255"),
        ({"version": 1, "rules": [RULE] * 1001}, "at most 1000"),
    ],
)
def test_a_policy_that_is_not_understood_grants_nothing(document: Any, reason: str) -> None:
    text = json.dumps(document)
    with pytest.raises(dlog.ConfigError, match=reason):
        parse_policy(text)
    with pytest.raises(dlog.LogMetadataError, match="nothing is allowed"):
        decode_policy(text.encode())


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_bytes_that_are_no_json_grant_nothing(text: str) -> None:
    with pytest.raises(dlog.LogMetadataError, match="not JSON"):
        decode_policy(text.encode())


async def test_the_rules_about_one_principal_are_seen_and_cannot_be_stored() -> None:
    async with open_memory_store(MemoryTree()) as store:
        root, worker = Permissions(store, "/ns", "root"), Permissions(store, "/ns", "shop-7")
        await root.replace(POLICY)
        assert await root.visible() == POLICY
        seen = await worker.visible()
        assert seen is not None
        assert [rule.logs for rule in seen.rules] == ["shop/*", "audit", "public"]
        assert not seen.is_whole
        with pytest.raises(dlog.ConfigError, match="only the rules about one principal"):
            await root.replace(seen)
        assert await root.policy() == POLICY


@pytest.mark.slow
async def test_many_logs_are_filtered_in_steps_that_let_others_run() -> None:
    async with open_memory_store(MemoryTree()) as store:
        root, worker = Permissions(store, "/ns", "root"), Permissions(store, "/ns", "w")
        rules = [Rule("w", f"{number}-*", READ) for number in range(500)]
        await root.replace(Policy((*POLICY.rules, *rules)))
        names = [f"{number}-log" for number in range(1_000)]
        steps = 0

        async def count() -> None:
            nonlocal steps
            while True:
                await trio.lowlevel.checkpoint()
                steps += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            assert await worker.readable(names) == names[:500]
            nursery.cancel_scope.cancel()
        assert steps > 30  # 500,000 comparisons, 10,000 in a step
        assert await root.readable(names) == names


async def test_a_changed_policy_counts_at_once_in_every_session() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as one, open_memory_store(tree) as other:
        root, worker = Permissions(one, "/ns", "root"), Permissions(other, "/ns", "shop-1")
        await worker.check("anything", Right.ADMIN)  # there is no policy
        await root.replace(POLICY)
        with pytest.raises(dlog.AccessDeniedError, match="gives 'shop-1' no right to read"):
            await worker.check("anything", Right.READ)
        await worker.check("shop/orders", Right.WRITE)
        with pytest.raises(dlog.AccessDeniedError, match="may not change the policy"):
            await worker.replace(None)
        await root.replace(Policy((*POLICY.rules, Rule("shop-1", "anything", READ))))
        await worker.check("anything", Right.READ)
        await root.replace(None)
        await worker.check("anything", Right.ADMIN)


async def test_a_stored_policy_that_does_not_parse_denies_everything() -> None:
    async with open_memory_store(MemoryTree()) as store:
        await store.create("/ns/.dlog-policy", b"{}", parents=True)
        permissions = Permissions(store, "/ns", "root")
        with pytest.raises(dlog.LogMetadataError, match="nothing is allowed"):
            await permissions.check("orders", Right.READ)
        with pytest.raises(dlog.LogMetadataError, match="nothing is allowed"):
            await permissions.replace(None)


def config_of(principal: str) -> dlog.NamespaceConfig:
    return dlog.NamespaceConfig(principal=principal)


@pytest.mark.slow
async def test_a_namespace_obeys_its_policy(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    async with dlog.open_namespace(uri, config=config_of("root")) as namespace:
        await namespace.policy.set(POLICY)
        async with namespace.open_writer("shop/orders", create=True) as writer:
            await writer.append(b"x")
        await namespace.create_log("public")
        assert await namespace.list_logs() == ["public", "shop/orders"]
    async with dlog.open_namespace(uri, config=config_of("shop-1")) as namespace:
        async with namespace.open_writer("shop/orders") as writer:
            dlsn = await writer.append(b"y")
            with pytest.raises(dlog.AccessDeniedError, match="no right to admin"):
                await writer.truncate(dlsn)
        async with namespace.open_reader("shop/orders", follow=False) as reader:
            assert [record.payload async for record in reader] == [b"x", b"y"]
        await refused(lambda: namespace.delete_log("shop/orders"))
        await refused(lambda: namespace.truncate_log("shop/orders", dlsn))
        await refused(lambda: namespace.purge_log("shop/orders"))
        await refused(lambda: namespace.policy.set(None))
    async with dlog.open_namespace(uri, config=config_of("stranger")) as namespace:

        async def write(log: str, create: bool) -> None:
            async with namespace.open_writer(log, create=create):
                pass

        async def read() -> None:
            async with namespace.open_reader("shop/orders", follow=False):
                pass

        for act in (
            lambda: write("shop/orders", False),
            lambda: write("public", False),
            lambda: write("new", True),
            read,
            lambda: namespace.create_log("new"),
            lambda: namespace.segments("shop/orders"),
            lambda: namespace.last_dlsn("shop/orders"),
            lambda: namespace.describe_log("shop/orders"),
            lambda: namespace.repair.verify("shop/orders"),
            lambda: namespace.delete_log("public"),
            lambda: namespace.purge_log("shop/orders", dry_run=True),
        ):
            await refused(act)
        assert (await namespace.describe_log("public")).record_count == 0
        assert await namespace.list_logs() == ["public"]


async def refused(act: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(dlog.AccessDeniedError):
        await act()


@pytest.mark.slow
def test_the_commands_show_set_and_delete_a_policy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "operator")
    monkeypatch.setenv("DLOG_URI", (tmp_path / "namespace").as_uri())
    file = tmp_path / "policy.json"

    def policy(*arguments: str) -> tuple[int, str, str]:
        code = main(["policy", *arguments])
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    assert json.loads(policy("show", "--json")[1]) == {"principal": "operator", "policy": None}
    file.write_bytes(encode_policy(POLICY))
    assert policy("set", str(file))[0] == 0
    code, out, err = policy("show")
    assert "operator" in err
    assert "only the rules about this program" in err
    assert "shop-*" not in out
    assert [rule["logs"] for rule in json.loads(policy("show", "--json")[1])["policy"]["rules"]] == ["public"]
    assert main(["log", "create", "mine"]) == 8
    assert "gives 'operator' no right to write" in capfd.readouterr().err
    assert policy("delete", "--yes")[0] == 8
    monkeypatch.setenv("LOGNAME", "root")
    code, out, err = policy("show")
    assert "only the rules" not in err
    assert out.splitlines()[-1].split() == ["billing", "shop/*", "commit", "billing*"]
    assert (code, json.loads(policy("show", "--json")[1])["policy"]) == (0, json.loads(encode_policy(POLICY)))
    file.write_text("{}")
    assert policy("set", str(file))[0] == 2
    assert policy("delete", "--yes")[0] == 0
    assert main(["log", "create", "mine"]) == 0
