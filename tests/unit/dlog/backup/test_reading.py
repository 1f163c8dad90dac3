"""Backups that are read where they are."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from urllib.parse import quote

import pytest

import dlog
from dlog.backup import BackupError, BackupNotFoundError
from dlog.backup.reading import BackupUri, parse_backup_uri
from tests.unit.dlog.backup.test_backups import Records, append, back_up, records_of, restore
from tests.unit.dlog.backup.test_s3 import destination as s3_destination  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow  # each has directories of its own, on the disk


def uri_of(destination: Path, at: datetime.datetime | None = None) -> str:
    moment = "" if at is None else f"?at={quote(at.isoformat())}"
    return f"backup:{destination}{moment}"


def chunks_of(destination: Path) -> list[Path]:
    return sorted(each for each in (destination / "ledgers").rglob("*") if each.is_file())


async def read_gaps(uri: str, log: str) -> tuple[list[bytes], list[dlog.Gap]]:
    payloads: list[bytes] = []
    gaps: list[dlog.Gap] = []
    async with (
        dlog.open_namespace(uri) as namespace,
        namespace.open_reader(log, follow=False, gaps=True) as reader,
    ):
        while (found := await reader.read_batch_or_gap(100)) is not None:
            if isinstance(found, dlog.Gap):
                gaps.append(found)
            else:
                payloads += [record.payload for record in found]
    return payloads, gaps


async def test_a_backup_is_read_like_the_directory_that_is_restored_of_it(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        for _ in range(3):
            async with namespace.open_writer("shop/orders", create=True) as writer:
                await writer.append_many([b"%d" % each for each in range(5_000)])
        async with namespace.open_writer("shop/open", create=True) as writer:
            await writer.append_many([b"one", b"two"])
            await namespace.properties.change("shop/open", {"owner": "me"})
            await namespace.cursors("shop/orders").set("billing", dlog.DLSN(2, 0, 1))
            await namespace.backup.make(destination)  # with a segment in progress
    await restore(destination, tmp_path / "restored")
    for log in ("shop/orders", "shop/open"):
        expected = await records_of((tmp_path / "restored").as_uri(), log)
        assert expected
        assert await records_of(uri_of(destination), log) == expected
    async with dlog.open_namespace(uri_of(destination)) as namespace:
        assert await namespace.list_logs() == ["shop/open", "shop/orders"]
        assert (await namespace.properties.get("shop/open")).values == {"owner": "me"}
        cursor = await namespace.cursors("shop/orders").get("billing")
        assert cursor is not None
        assert cursor.position == dlog.DLSN(2, 0, 1)


async def test_a_backup_is_read_as_of_a_moment(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "orders", b"one")
    first = await back_up(source, destination)
    await append(source, "orders", b"two")
    await back_up(source, destination)
    moment = datetime.datetime.fromtimestamp(first.cut_ms / 1000, datetime.UTC)
    assert [each[2] for each in await records_of(uri_of(destination), "orders")] == [b"one", b"two"]
    assert [each[2] for each in await records_of(uri_of(destination, moment), "orders")] == [b"one"]
    with pytest.raises(BackupNotFoundError, match="the first backup is of"):
        await records_of(uri_of(destination, moment - datetime.timedelta(days=1)), "orders")


async def test_a_backup_refuses_each_change_and_no_file_of_it_changes(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "orders", b"one")
    await back_up(source, destination)
    before = {each: os.stat(each).st_mtime_ns for each in destination.rglob("*")}
    async with dlog.open_namespace(uri_of(destination)) as namespace:
        with pytest.raises(dlog.ReadOnlyError, match=r"it is a backup.*dlog restore"):
            await namespace.create_log("new")
        with pytest.raises(dlog.ReadOnlyError, match="it is a backup"):
            await namespace.delete_log("orders")
        with pytest.raises(dlog.ReadOnlyError, match="it is a backup"):
            async with namespace.open_writer("orders"):
                pass
    assert {each: os.stat(each).st_mtime_ns for each in destination.rglob("*")} == before


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_damaged_object_is_an_error_with_log_position_and_object(
    tmp_path: Path, is_deleted: bool
) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "orders", b"one")
    await append(source, "orders", b"two")
    await append(source, "sound", b"x")
    await back_up(source, destination)
    damaged = next(each for each in chunks_of(destination) if b"two" in each.read_bytes())
    if is_deleted:
        damaged.unlink()
    else:
        data = damaged.read_bytes()
        damaged.write_bytes(data.replace(b"two", b"tw0"))
    with pytest.raises(dlog.CorruptLogError) as raised:
        await records_of(uri_of(destination), "orders")
    assert raised.value.position == dlog.DLSN(2, 0, 0)
    assert "'orders'" in str(raised.value)
    assert str(damaged.relative_to(destination)) in str(raised.value)
    assert len(await records_of(uri_of(destination), "sound")) == 1
    payloads, gaps = await read_gaps(uri_of(destination), "orders")
    assert payloads == [b"one"]
    assert [gap.first for gap in gaps] == [dlog.DLSN(2, 0, 0)]


async def test_a_destination_that_goes_away_is_an_error_that_names_it(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "orders", b"one")
    await back_up(source, destination)
    config = dlog.NamespaceConfig(reader=dlog.ReaderConfig(retry_timeout_s=0.0))
    async with dlog.open_namespace(uri_of(destination), config=config) as namespace:
        destination.rename(tmp_path / "away")
        with pytest.raises(dlog.LogReaderStalledError, match=rf"{destination}.*is its disk mounted"):
            async with namespace.open_reader("orders", follow=False) as reader:
                await reader.read_batch(10)
        (tmp_path / "away").rename(destination)
        async with namespace.open_reader("orders", follow=False) as reader:
            assert [record.payload async for record in reader] == [b"one"]


async def test_a_backup_that_is_pruned_while_it_is_read_is_an_error_and_no_gap(tmp_path: Path) -> None:
    source, destination = tmp_path / "source", tmp_path / "destination"
    await append(source, "orders", b"one")
    await back_up(source, destination)
    config = dlog.NamespaceConfig(reader=dlog.ReaderConfig(retry_timeout_s=0.0))
    async with dlog.open_namespace(uri_of(destination), config=config) as namespace:
        async with dlog.open_namespace(source.as_uri()) as written:
            await written.delete_log("orders")
        await append(source, "later", b"x")
        await back_up(source, destination, keep=1)
        for gaps in (False, True):
            with pytest.raises(dlog.LogReaderStalledError, match="was pruned while it was read; open the"):
                async with namespace.open_reader("orders", follow=False, gaps=gaps) as reader:
                    await (reader.read_batch_or_gap(10) if gaps else reader.read_batch(10))


async def test_a_backup_is_no_source_of_another_one(tmp_path: Path) -> None:
    await append(tmp_path / "source", "orders", b"one")
    await back_up(tmp_path / "source", tmp_path / "destination")
    async with dlog.open_namespace(uri_of(tmp_path / "destination")) as namespace:
        with pytest.raises(BackupError, match="it is a backup itself"):
            await namespace.backup.make(tmp_path / "other")
    assert not (tmp_path / "other").exists()


async def test_only_the_chunks_that_are_read_are_fetched_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dlog.backup.store import BackupStore

    source, destination = tmp_path / "source", tmp_path / "destination"
    for _ in range(3):
        await append(source, "orders", *[b"x" * 1000] * 300)
    await append(source, "other", b"y")
    await back_up(source, destination)
    fetched: list[str] = []
    real = BackupStore.read_chunk

    async def read_chunk(self: BackupStore, ledger_id: int, chunk: object) -> list[bytes]:
        fetched.append(chunk.name(ledger_id))  # type: ignore[attr-defined]
        return await real(self, ledger_id, chunk)  # type: ignore[arg-type]

    monkeypatch.setattr(BackupStore, "read_chunk", read_chunk)
    async with dlog.open_namespace(uri_of(destination)) as namespace:
        assert fetched == []
        for _ in range(2):
            async with namespace.open_reader("orders", start=dlog.DLSN(3, 0, 0), follow=False) as reader:
                assert len([record async for record in reader]) == 300
    assert len(fetched) == len(set(fetched)) == 1


async def test_a_backup_in_a_bucket_is_read_where_it_is(
    s3_destination: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    s3_destination = s3_destination.replace("/shop", "/read")  # the server keeps what other tests put
    await append(source, "orders", b"one", b"two")
    async with dlog.open_namespace(source.as_uri(), read_only=True) as namespace:
        made = await namespace.backup.make(s3_destination)
    expected: Records = await records_of(source.as_uri(), "orders")
    assert await records_of(s3_destination, "orders") == expected
    moment = datetime.datetime.fromtimestamp(made.cut_ms / 1000, datetime.UTC)
    assert await records_of(f"{s3_destination}&at={quote(moment.isoformat())}", "orders") == expected
    with pytest.raises(BackupNotFoundError):
        await records_of(f"{s3_destination}&at=2001-01-01T00:00", "orders")


def test_the_faces_for_asyncio_and_without_async_read_a_backup(tmp_path: Path) -> None:
    import asyncio

    import dlog.aio
    import dlog.blocking

    source, destination = tmp_path / "source", tmp_path / "destination"
    with dlog.blocking.open_namespace(source.as_uri()) as namespace:
        with namespace.open_writer("orders", create=True) as writer:
            writer.append(b"one")
        namespace.backup.make(destination)
    with (
        dlog.blocking.open_namespace(uri_of(destination)) as namespace,
        namespace.open_reader("orders", follow=False) as reader,
    ):
        assert [record.payload for record in reader] == [b"one"]

    async def read() -> list[bytes]:
        async with (
            dlog.aio.open_namespace(uri_of(destination)) as namespace,
            namespace.open_reader("orders", follow=False) as reader,
        ):
            return [record.payload async for record in reader]

    assert asyncio.run(read()) == [b"one"]


def test_a_uri_of_a_backup_is_parsed_or_refused() -> None:
    noon = datetime.datetime(2026, 11, 1, 12, 30, tzinfo=datetime.UTC)
    assert parse_backup_uri("backup:/a%20b/c") == BackupUri("/a b/c", None)
    assert parse_backup_uri("backup:///a?at=2026-11-01T12:30:00%2B00:00") == BackupUri("/a", noon)
    assert parse_backup_uri("backup:/a?at=2026-11-01 12:30:00+00:00") == BackupUri("/a", noon)
    assert parse_backup_uri("s3://b/p?region=eu-1&at=2026-11-01T12:30:00Z&scheme=http") == BackupUri(
        "s3://b/p?region=eu-1&scheme=http", noon
    )
    for wrong in (
        "backup:a",
        "backup://host/a",
        "backup:/a?write_quorum=2",
        "backup:/a?at=noon",
        "backup:/a?at=2026-11-01&at=2026-11-02",
        "backup:/a#b",
        "s3://key:secret@bucket/prefix",
        "s3://key:other/secret@bucket/prefix",
    ):
        with pytest.raises(dlog.InvalidUriError) as raised:
            parse_backup_uri(wrong)
        assert "secret" not in str(raised.value)
