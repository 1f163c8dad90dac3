"""A member of a group makes nodes and moves cursors only while it has the right to commit them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

import dlog
from dlog.groups import GroupConfig, join_group
from namespace.policy import Policy, Right, Rule
from tests.fakes.dict_bookies import open_cluster
from tests.fakes.dict_namespace import Opened, open_on, write_segments
from tests.fakes.log_paths import paths_of

ROOT = Rule("root", "*", frozenset({Right.ADMIN}))
OF_BILLING = Policy((ROOT, Rule("test", "log", frozenset({Right.COMMIT}), "billing*")))
OF_READERS = Policy((ROOT, Rule("test", "log", frozenset({Right.READ}))))
QUICK = GroupConfig(check_interval_s=0.05)


@pytest.fixture
async def opened(autojump_clock: trio.testing.MockClock) -> AsyncIterator[Opened]:
    async with open_cluster() as cluster, open_on(cluster) as found:
        await write_segments(found.namespace, "log", 2)
        yield found


async def test_a_group_whose_cursor_the_policy_does_not_name_is_not_joined(opened: Opened) -> None:
    namespace = opened.namespace
    await namespace.policy.set(OF_BILLING)
    with pytest.raises(dlog.AccessDeniedError, match="no right to commit cursor 'audit'"):
        async with join_group(namespace, "audit", ["log"]):
            pass
    assert await opened.store.exists(paths_of("/ns", "log").subscribers_path) is None
    async with join_group(namespace, "billing", ["log"]) as member:
        await member.commit(await anext(member))
    assert [each.name for each in await namespace.cursors("log").list()] == ["billing"]


async def test_a_member_that_loses_the_right_makes_no_node_and_stops(opened: Opened) -> None:
    namespace = opened.namespace
    await namespace.policy.set(OF_BILLING)
    async with join_group(namespace, "billing", ["log"], config=QUICK) as member:
        batch = await anext(member)
        namespace.context.permissions.principal = "root"
        await namespace.policy.set(OF_READERS)
        namespace.context.permissions.principal = "test"
        members = f"{paths_of('/ns', 'log').subscriber_path('billing')}/members"
        await opened.store.delete(f"{members}/{member.name}")  # it would make the node again
        with pytest.raises(dlog.AccessDeniedError):
            await member.commit(batch)
        with pytest.raises(dlog.AccessDeniedError, match="no right to commit"):
            await anext(member)
        assert (await opened.store.children(members)).names == ()
