"""Backups of some logs of a namespace."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import dlog
from dlog.backup import BackupError, BackupNotFoundError, open_backups
from tests.unit.dlog.backup.test_backups import append, back_up, records_of, restore
from tests.unit.dlog.backup.test_replication import replicating

pytestmark = pytest.mark.slow


async def logs_at(destination: Path) -> list[str]:
    async with open_backups(destination) as backups:
        return await backups.logs()


@pytest.mark.parametrize("reads_tree", [True, False])
async def test_a_backup_of_some_logs_has_these_and_no_byte_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, reads_tree: bool
) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    for log in ("shop/orders", "shop/visits", "other"):
        await append(source, log, log.encode())
    async with dlog.open_namespace(source.as_uri()) as namespace:
        await namespace.blobs.put("picture", b"x" * 1000)
        if not reads_tree:  # as ZooKeeper

            async def no_tree(path: str) -> None:
                return None

            monkeypatch.setattr(namespace.context.store, "read_tree", no_tree)
        made = await namespace.backup.make(destination, logs=["shop/orders"])
        (segment,) = await namespace.segments("shop/orders")
    assert (made.logs, made.ledgers) == (1, 1)
    assert [path.name for path in (destination / "ledgers").iterdir()] == [str(segment.ledger_id)]
    await restore(destination, tmp_path / "restored")
    async with dlog.open_namespace((tmp_path / "restored").as_uri(), read_only=True) as namespace:
        assert await namespace.list_logs() == ["shop/orders"]
        assert await namespace.blobs.list() == []
    found = await records_of((tmp_path / "restored").as_uri(), "shop/orders")
    assert found == await records_of(source.as_uri(), "shop/orders")


async def test_later_backups_may_have_more_logs_and_none_leaves_one_out(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    for log in ("one", "two"):
        await append(source, log, b"x")
    await back_up(source, destination, logs=["one"])
    with pytest.raises(BackupError, match="has backups of one, and this one would leave that out"):
        await back_up(source, destination, logs=["two"])
    assert await logs_at(destination) == ["one"]
    await back_up(source, destination, logs=["one", "two"])
    assert await logs_at(destination) == ["one", "two"]
    await back_up(source, destination)
    with pytest.raises(BackupError, match="has backups of all logs, and this one would leave the others out"):
        await back_up(source, destination, logs=["one", "two"])


async def test_a_log_that_does_not_exist_has_no_backup(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "one", b"x")
    with pytest.raises(dlog.LogNotFoundError, match="two"):
        await back_up(source, destination, logs=["one", "two"])
    with pytest.raises(BackupNotFoundError, match="no backup was completed"):
        await logs_at(destination)


@pytest.mark.parametrize("logs", ["one", [], ()])
async def test_an_empty_selection_and_a_single_text_are_refused(tmp_path: Path, logs: object) -> None:
    await append(tmp_path / "source", "one", b"x")
    with pytest.raises(ValueError, match="give names of logs"):
        await back_up(tmp_path / "source", tmp_path / "destination", logs=logs)


async def test_a_selected_log_that_is_deleted_ends_no_replication(tmp_path: Path) -> None:
    destination = tmp_path / "destination"
    for log in ("one", "two", "three"):
        await append(tmp_path / "source", log, b"x")
    async with (
        dlog.open_namespace((tmp_path / "source").as_uri()) as namespace,
        replicating(namespace, destination, ["one", "two"]) as rounds,
    ):
        await rounds.wait(lambda status: status.rounds > 0)
        assert await logs_at(destination) == ["one", "two"]
        await namespace.delete_log("two")
        with trio.fail_after(60):
            while await logs_at(destination) != ["one"]:
                count = rounds.seen[-1].rounds
                await rounds.wait(lambda status, count=count: status.rounds > count)  # type: ignore[misc]
        await append(tmp_path / "source", "one", b"y")
        count = rounds.seen[-1].rounds
        await rounds.wait(lambda status, count=count: status.rounds > count + 1)  # type: ignore[misc]
    assert rounds.seen[-1].failure is None
    await restore(destination, tmp_path / "restored")
    assert len(await records_of((tmp_path / "restored").as_uri(), "one")) == 2
