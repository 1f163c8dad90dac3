"""Creating a sharded log: what exists after a step was interrupted, and what is refused."""

from __future__ import annotations

import pytest

import dlog
from dlog.operations.properties import PropertyCalls
from dlog.shards import (
    NotShardedError,
    ShardCountError,
    ShardsMissingError,
    create_sharded_log,
    delete_sharded_log,
    open_sharded_reader,
    open_sharded_writer,
    shard_names,
)
from namespace.policy import Policy, Right, Rule

CHANGES = ((dlog.Namespace, "create_log"), (PropertyCalls, "change"))


class DiedError(Exception):
    """The program died here."""


async def create_until(namespace: dlog.Namespace, step: int, *, is_done: bool) -> None:
    """Create the log ``s`` with 3 shards, and die before the change with this number, or behind it."""
    left = step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in CHANGES:
            change = getattr(owner, name)

            async def counted(*args: object, _change: object = change, **kwargs: object) -> object:
                nonlocal left
                left -= 1
                if left == 0 and not is_done:
                    raise DiedError
                done = await _change(*args, **kwargs)  # type: ignore[operator]
                if left == 0:
                    raise DiedError
                return done

            patch.setattr(owner, name, counted)
        with pytest.raises(DiedError):
            await create_sharded_log(namespace, "s", 3)


async def test_a_sharded_log_is_logs_below_its_name(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "shop/s", 3)
    names = ["shop/s/shard-00000", "shop/s/shard-00001", "shop/s/shard-00002"]
    assert await shard_names(namespace, "shop/s") == names == await namespace.list_logs()
    with pytest.raises(dlog.LogExistsError):
        await create_sharded_log(namespace, "shop/s", 3)
    await create_sharded_log(namespace, "shop/s", 3, exist_ok=True)


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
async def test_an_interrupted_creation_is_continued(
    namespace: dlog.Namespace, step: int, is_done: bool
) -> None:
    await create_until(namespace, step, is_done=is_done)
    if (step, is_done) == (5, True):
        assert len(await shard_names(namespace, "s")) == 3
        return
    with pytest.raises((NotShardedError, ShardsMissingError)):
        async with open_sharded_writer(namespace, "s"):
            pass
    if (step, is_done) >= (2, True):
        with pytest.raises(ShardCountError, match="3 shards, not 4"):
            await create_sharded_log(namespace, "s", 4, exist_ok=True)
    await create_sharded_log(namespace, "s", 3)
    assert len(await shard_names(namespace, "s")) == 3


async def test_another_number_of_shards_is_refused(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 2)
    for count in (1, 3):
        with pytest.raises(ShardCountError, match=f"2 shards, not {count}"):
            await create_sharded_log(namespace, "s", count, exist_ok=True)
    assert len(await namespace.list_logs("s")) == 2
    for count in (0, 1001):
        with pytest.raises(ValueError, match="from 1 to 1000"):
            await create_sharded_log(namespace, "t", count)
    assert await namespace.list_logs("t") == []


async def test_a_creation_that_lost_a_race_obeys_the_first(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = namespace.segments

    async def create_first(name: str) -> object:
        monkeypatch.setattr(namespace, "segments", segments)
        await create_sharded_log(namespace, "s", 2)
        return await segments(name)

    monkeypatch.setattr(namespace, "segments", create_first)  # called just before the layout is stored
    with pytest.raises(ShardCountError, match="2 shards, not 3"):
        await create_sharded_log(namespace, "s", 3)
    assert len(await shard_names(namespace, "s")) == 2


async def test_a_name_that_is_no_sharded_log_is_a_clear_error(namespace: dlog.Namespace) -> None:
    await namespace.create_log("plain")
    await namespace.create_log("t/shard-00000")
    for name in ("nothing", "plain", "t"):
        for opening in (open_sharded_writer(namespace, name), open_sharded_reader(namespace, name)):
            with pytest.raises(NotShardedError, match=f"'{name}' is no sharded log"):
                async with opening:
                    pass


async def test_a_deleted_shard_is_never_replaced_by_an_empty_one(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "s", 3)
    await namespace.delete_log("s/shard-00001")
    with pytest.raises(ShardsMissingError, match="they were deleted") as caught:
        await create_sharded_log(namespace, "s", 3, exist_ok=True)
    assert caught.value.missing == ("s/shard-00001",)
    with pytest.raises(ShardsMissingError):
        async with open_sharded_reader(namespace, "s"):
            pass
    await namespace.delete_log("s/shard-00000")
    with pytest.raises(dlog.LogMetadataError, match="s/shard-00002 exists, but not s/shard-00000"):
        await create_sharded_log(namespace, "s", 2)
    await namespace.create_log("s/shard-00000")
    with pytest.raises(dlog.LogMetadataError, match="has no layout, but s/shard-00002 exists"):
        await create_sharded_log(namespace, "s", 2)


async def test_a_log_with_records_does_not_become_shard_0(namespace: dlog.Namespace) -> None:
    async with namespace.open_writer("s/shard-00000", create=True) as writer:
        await writer.append(b"old")
    with pytest.raises(dlog.LogMetadataError, match="was written, and has no layout"):
        await create_sharded_log(namespace, "s", 2)


async def test_a_deletion_takes_the_layout_last(
    namespace: dlog.Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_sharded_log(namespace, "s", 3)
    delete = namespace.delete_log

    async def delete_but_one(name: str, **options: float) -> None:
        if name == "s/shard-00001":
            raise DiedError
        await delete(name, **options)

    monkeypatch.setattr(namespace, "delete_log", delete_but_one)
    with pytest.raises(DiedError):
        await delete_sharded_log(namespace, "s")
    monkeypatch.setattr(namespace, "delete_log", delete)
    assert await namespace.list_logs("s") == ["s/shard-00000", "s/shard-00001"]
    await delete_sharded_log(namespace, "s")
    assert await namespace.list_logs("s") == []
    with pytest.raises(NotShardedError):
        await delete_sharded_log(namespace, "s")


async def test_rights_on_some_shards_delete_none_and_list_none_as_missing(namespace: dlog.Namespace) -> None:
    await create_sharded_log(namespace, "orders", 2)
    root = Rule("operator", "*", frozenset({Right.ADMIN}))
    mine = [
        Rule(namespace.principal, "orders/shard-00000", frozenset({Right.READ})),
        Rule(namespace.principal, "orders/shard-00001", frozenset({Right.ADMIN})),
    ]
    await namespace.policy.set(Policy((root, *mine)))
    with pytest.raises(dlog.AccessDeniedError, match="no right to admin"):
        await delete_sharded_log(namespace, "orders")
    assert await shard_names(namespace, "orders") == ["orders/shard-00000", "orders/shard-00001"]
    namespace.context.permissions.principal = "operator"
    await namespace.policy.set(Policy((root, Rule("other", "orders/shard-00000", frozenset({Right.READ})))))
    namespace.context.permissions.principal = "other"
    with pytest.raises(dlog.AccessDeniedError, match="no right to read"):
        await shard_names(namespace, "orders")
