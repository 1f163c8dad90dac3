"""Whether a bookie may use its disks: the table of verdicts, and the order of the writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from bookie.disk.real_disk import RealDisk
from bookie.errors import CookieError, DirectoryError
from bookie.identity.cookie import Cookie, decode_cookie, encode_cookie
from bookie.identity.cookie_check import (
    DirectoryVerdict,
    check_cookies,
    create_cookie,
    read_instance_id,
    write_version_files,
)
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store

ROOT = "/ledgers"
NODE = f"{ROOT}/cookies/b:1"


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with open_memory_store(MemoryTree()) as opened:
        await opened.create(ROOT)
        yield opened


@pytest.fixture
def cookie(tmp_path: Path) -> Cookie:
    return Cookie("b:1", (f"{tmp_path}/j",), (f"{tmp_path}/l",), (), "cluster")


def version_file(directory: str) -> Path:
    return Path(directory) / "current" / "VERSION"


async def check(
    store: MemoryStore, cookie: Cookie, *, expand: bool = False, ids: tuple[str, ...] = ()
) -> DirectoryVerdict:
    disk = RealDisk()
    check = await check_cookies(store, ROOT, disk, cookie, possible_ids=ids, allow_expansion=expand)
    await write_version_files(disk, check)
    if check.verdict is DirectoryVerdict.NEW:
        await create_cookie(store, ROOT, check, timeout_s=0)
    elif check.verdict is DirectoryVerdict.EXPAND:
        await store.put(check.node_path, encode_cookie(cookie))
    return check.verdict


async def test_a_new_bookie_writes_version_to_each_directory_then_its_cookie(
    store: MemoryStore, cookie: Cookie
) -> None:
    assert await check(store, cookie) is DirectoryVerdict.NEW
    for directory in (*cookie.journal_directories, *cookie.ledger_directories):
        assert version_file(directory).read_bytes() == encode_cookie(cookie)
        assert [path.name for path in version_file(directory).parent.iterdir()] == ["VERSION"]
    assert (await store.get(NODE)).value == encode_cookie(cookie)
    assert await check(store, cookie) is DirectoryVerdict.START
    assert (await store.get(NODE)).stat.version == 0


async def test_disks_with_version_but_without_a_stored_cookie_do_not_start(
    store: MemoryStore, cookie: Cookie
) -> None:
    await check(store, cookie)
    (version_file(cookie.ledger_directories[0]).parent / "0.log").write_bytes(b"data")
    await store.delete(NODE)
    with pytest.raises(CookieError, match="no cookie at /ledgers/cookies/b:1"):
        await check(store, cookie)
    assert await store.exists(NODE) is None


async def test_a_start_interrupted_before_the_node_is_completed_by_the_next(
    store: MemoryStore, cookie: Cookie
) -> None:
    await check(store, cookie)
    await store.delete(NODE)
    version_file(cookie.ledger_directories[0]).with_name("VERSION.tmp").write_bytes(b"half")
    assert await check(store, cookie) is DirectoryVerdict.NEW
    assert await store.exists(NODE) is not None


async def test_the_lock_file_of_a_bookie_that_ran_there_is_no_data(
    store: MemoryStore, cookie: Cookie
) -> None:
    for directory in (*cookie.journal_directories, *cookie.ledger_directories):
        lock = version_file(directory).with_name("LOCK")
        lock.parent.mkdir(parents=True)
        lock.write_text("1\n")
    assert await check(store, cookie) is DirectoryVerdict.NEW


async def test_a_bookie_whose_disk_was_lost_is_told_the_command(store: MemoryStore, cookie: Cookie) -> None:
    await check(store, cookie)
    version_file(cookie.ledger_directories[0]).unlink()
    with pytest.raises(CookieError, match=r"`dlog bookie decommission b:1`"):
        await check(store, cookie)


async def test_a_new_bookie_refuses_a_directory_with_data(store: MemoryStore, cookie: Cookie) -> None:
    foreign = version_file(cookie.ledger_directories[0]).with_name("0.log")
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"data")
    with pytest.raises(CookieError, match="is not empty"):
        await check(store, cookie)
    assert not version_file(cookie.journal_directories[0]).exists()
    assert await store.exists(NODE) is None


async def test_a_lost_disk_is_noticed(store: MemoryStore, cookie: Cookie) -> None:
    await check(store, cookie)
    version_file(cookie.ledger_directories[0]).unlink()
    with pytest.raises(CookieError, match="a disk was lost, swapped or is not mounted"):
        await check(store, cookie)
    with pytest.raises(CookieError, match="a disk was lost or is not mounted"):
        await check(store, cookie, expand=True)
    assert not version_file(cookie.ledger_directories[0]).exists()


async def test_an_empty_directory_may_be_added_when_that_is_allowed(
    store: MemoryStore, cookie: Cookie, tmp_path: Path
) -> None:
    await check(store, cookie)
    more = attrs.evolve(cookie, ledger_directories=(*cookie.ledger_directories, f"{tmp_path}/l2"))
    with pytest.raises(CookieError, match="allowStorageExpansion=true"):
        await check(store, more)
    assert await check(store, more, expand=True) is DirectoryVerdict.EXPAND
    for directory in (*more.journal_directories, *more.ledger_directories):
        assert decode_cookie(version_file(directory).read_bytes()) == more
    assert (await store.get(NODE)).stat.version == 1
    assert await check(store, more) is DirectoryVerdict.START


async def test_a_foreign_disk_is_refused_with_both_cookies_and_a_remedy(
    store: MemoryStore, cookie: Cookie
) -> None:
    await check(store, cookie)
    other = attrs.evolve(cookie, bookie_id="b:2")
    with pytest.raises(CookieError) as caught:
        await check(store, other)
    message = str(caught.value)
    assert '- bookieHost: "b:1"' in message
    assert '+ bookieHost: "b:2"' in message
    assert "bookieId=b:1" in message
    assert await store.exists(f"{ROOT}/cookies/b:2") is None


async def test_a_formatted_cluster_counts_as_another_cluster(store: MemoryStore, cookie: Cookie) -> None:
    await check(store, cookie)
    with pytest.raises(CookieError, match="another cluster"):
        await check(store, attrs.evolve(cookie, instance_id="formatted"))


async def test_a_cookie_under_a_former_name_is_found(store: MemoryStore, cookie: Cookie) -> None:
    await check(store, cookie)
    renamed = attrs.evolve(cookie, bookie_id="host:1")
    with pytest.raises(CookieError, match="node /ledgers/cookies/b:1"):
        await check(store, renamed, ids=("host:1", "b:1"))


async def test_directories_in_another_order_are_refused(
    store: MemoryStore, cookie: Cookie, tmp_path: Path
) -> None:
    two = attrs.evolve(cookie, ledger_directories=(f"{tmp_path}/l", f"{tmp_path}/l2"))
    await check(store, two)
    with pytest.raises(CookieError, match="in their order"):
        await check(store, attrs.evolve(two, ledger_directories=two.ledger_directories[::-1]))


async def test_the_disk_layout_before_current_is_refused(store: MemoryStore, cookie: Cookie) -> None:
    old = version_file(cookie.ledger_directories[0]).parent.with_name("7.log")
    old.parent.mkdir()
    old.touch()
    with pytest.raises(DirectoryError, match=r"before 4\.1"):
        await check(store, cookie)


async def test_a_directory_that_cannot_be_created_is_named(
    store: MemoryStore, cookie: Cookie, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    blocked = attrs.evolve(cookie, ledger_directories=(f"{tmp_path}/file/below",))
    with pytest.raises(DirectoryError, match="file/below cannot be used"):
        await check(store, blocked)


async def test_a_cluster_without_an_instance_id_is_tolerated(store: MemoryStore, cookie: Cookie) -> None:
    assert await read_instance_id(store, ROOT) is None
    nameless = attrs.evolve(cookie, instance_id=None)
    await check(store, nameless)
    assert b"instanceId" not in (await store.get(NODE)).value
    await store.create(f"{ROOT}/INSTANCEID", b"1234")
    assert await read_instance_id(store, ROOT) == "1234"


async def test_a_decommissioned_bookie_that_lost_a_disk_is_not_new(
    store: MemoryStore, cookie: Cookie, tmp_path: Path
) -> None:
    several = attrs.evolve(cookie, ledger_directories=(f"{tmp_path}/l1", f"{tmp_path}/l2"))
    await check(store, several)
    version_file(f"{tmp_path}/l1").with_name("0.log").write_bytes(b"data")
    version_file(f"{tmp_path}/l2").unlink()
    await store.delete(NODE)
    with pytest.raises(CookieError, match="no cookie at /ledgers/cookies/b:1"):
        await check(store, several)
    assert not version_file(f"{tmp_path}/l2").exists()


async def test_an_expansion_interrupted_before_the_node_is_completed(
    store: MemoryStore, cookie: Cookie, tmp_path: Path
) -> None:
    await check(store, cookie)
    more = attrs.evolve(cookie, ledger_directories=(*cookie.ledger_directories, f"{tmp_path}/l2"))
    assert await check(store, more, expand=True) is DirectoryVerdict.EXPAND
    await store.put(NODE, encode_cookie(cookie))  # as if the last step had not happened
    assert await check(store, more, expand=True) is DirectoryVerdict.EXPAND
    assert (await store.get(NODE)).value == encode_cookie(more)
    assert await check(store, more) is DirectoryVerdict.START


@pytest.mark.parametrize("lost", ["j1", "j2", "l1", "l2", "i1", "i2"])
async def test_every_lost_directory_is_named_with_both_cookies_and_the_remedy(
    store: MemoryStore, tmp_path: Path, lost: str
) -> None:
    names = {which: tuple(f"{tmp_path}/{which}{n}" for n in (1, 2)) for which in "jli"}
    cookie = Cookie("b:1", names["j"], names["l"], names["i"], "cluster")
    await check(store, cookie)
    version_file(f"{tmp_path}/{lost}").unlink()
    with pytest.raises(CookieError) as refused:
        await check(store, cookie)
    message = str(refused.value)
    assert f"{tmp_path}/{lost} has no VERSION file" in message
    assert "--- node /ledgers/cookies/b:1" in message
    assert "+++ configured" in message
    assert "dataIntegrityStampMissingCookies=true" in message
    assert all(version_file(name).exists() for which in names.values() for name in which if lost not in name)


async def test_directories_in_another_order_are_refused_with_the_remedy(
    store: MemoryStore, cookie: Cookie, tmp_path: Path
) -> None:
    several = attrs.evolve(cookie, ledger_directories=(f"{tmp_path}/l1", f"{tmp_path}/l2"))
    await check(store, several)
    swapped = attrs.evolve(cookie, ledger_directories=(f"{tmp_path}/l2", f"{tmp_path}/l1"))
    with pytest.raises(CookieError, match="restore the directories in the configuration, in their order"):
        await check(store, swapped)


async def test_an_interrupted_first_start_with_data_is_completed_if_it_left_a_loss_mark(
    store: MemoryStore, cookie: Cookie
) -> None:
    await check(store, cookie)
    await store.delete(NODE)
    file = version_file(cookie.ledger_directories[0])
    file.with_name("0.log").write_bytes(b"data")
    with pytest.raises(CookieError):
        await check(store, cookie)
    file.with_name("DOUBT").write_bytes(b"the bookie is new\n")
    assert await check(store, cookie) is DirectoryVerdict.NEW
