"""Whether a bookie may use its disks: the decision table, and what is written when."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from bookie.cookie import Cookie, decode_cookie, encode_cookie
from bookie.cookie_check import Verdict, examine, read_instance_id, register, stamp
from bookie.disk import RealDisk
from bookie.errors import CookieError, DirectoryError
from namespace.memory import MemoryStore, MemoryTree, open_memory_store

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
) -> Verdict:
    disk = RealDisk()
    examined = await examine(store, ROOT, disk, cookie, possible_ids=ids, allow_expansion=expand)
    await stamp(disk, examined)
    if examined.verdict is Verdict.NEW:
        await register(store, ROOT, examined)
    elif examined.verdict is Verdict.EXPAND:
        await store.put(examined.node_path, encode_cookie(cookie))
    return examined.verdict


async def test_a_new_bookie_stamps_every_directory_then_the_store(store: MemoryStore, cookie: Cookie) -> None:
    assert await check(store, cookie) is Verdict.NEW
    for directory in (*cookie.journal_directories, *cookie.ledger_directories):
        assert version_file(directory).read_bytes() == encode_cookie(cookie)
        assert [path.name for path in version_file(directory).parent.iterdir()] == ["VERSION"]
    assert (await store.get(NODE)).value == encode_cookie(cookie)
    assert await check(store, cookie) is Verdict.START
    assert (await store.get(NODE)).stat.version == 0


async def test_stamped_disks_without_a_registered_cookie_do_not_start(
    store: MemoryStore, cookie: Cookie
) -> None:
    await check(store, cookie)
    (version_file(cookie.ledger_directories[0]).parent / "0.log").write_bytes(b"data")
    await store.delete(NODE)
    with pytest.raises(CookieError, match="no cookie for it at /ledgers/cookies/b:1"):
        await check(store, cookie)
    assert await store.exists(NODE) is None


async def test_a_start_interrupted_before_the_node_goes_on(store: MemoryStore, cookie: Cookie) -> None:
    await check(store, cookie)
    await store.delete(NODE)
    version_file(cookie.ledger_directories[0]).with_name("VERSION.tmp").write_bytes(b"half")
    assert await check(store, cookie) is Verdict.NEW
    assert await store.exists(NODE) is not None


async def test_a_new_bookie_does_not_take_a_directory_that_holds_something(
    store: MemoryStore, cookie: Cookie
) -> None:
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
    assert await check(store, more, expand=True) is Verdict.EXPAND
    for directory in (*more.journal_directories, *more.ledger_directories):
        assert decode_cookie(version_file(directory).read_bytes()) == more
    assert (await store.get(NODE)).stat.version == 1
    assert await check(store, more) is Verdict.START


async def test_a_foreign_disk_is_shown_with_both_cookies_and_a_remedy(
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


async def test_a_formatted_cluster_is_another_one(store: MemoryStore, cookie: Cookie) -> None:
    await check(store, cookie)
    with pytest.raises(CookieError, match="another cluster"):
        await check(store, attrs.evolve(cookie, instance_id="new life"))


async def test_a_cookie_under_a_former_name_is_found(store: MemoryStore, cookie: Cookie) -> None:
    await check(store, cookie)
    renamed = attrs.evolve(cookie, bookie_id="host:1")
    with pytest.raises(CookieError, match="node /ledgers/cookies/b:1"):
        await check(store, renamed, ids=("host:1", "b:1"))


async def test_directories_in_another_order_are_not_the_same(
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


async def test_a_directory_that_cannot_be_made_is_named(
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
    with pytest.raises(CookieError, match="no cookie for it at /ledgers/cookies/b:1"):
        await check(store, several)
    assert not version_file(f"{tmp_path}/l2").exists()


async def test_an_expansion_that_was_interrupted_before_the_node_goes_on(
    store: MemoryStore, cookie: Cookie, tmp_path: Path
) -> None:
    await check(store, cookie)
    more = attrs.evolve(cookie, ledger_directories=(*cookie.ledger_directories, f"{tmp_path}/l2"))
    assert await check(store, more, expand=True) is Verdict.EXPAND
    await store.put(NODE, encode_cookie(cookie))  # as if the last step had not come
    assert await check(store, more, expand=True) is Verdict.EXPAND
    assert (await store.get(NODE)).value == encode_cookie(more)
    assert await check(store, more) is Verdict.START


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
    told = str(refused.value)
    assert f"{tmp_path}/{lost} has no VERSION file" in told
    assert "--- node /ledgers/cookies/b:1" in told
    assert "+++ configured" in told
    assert "dataIntegrityStampMissingCookies=true" in told
    assert all(version_file(name).exists() for which in names.values() for name in which if lost not in name)


async def test_directories_in_another_order_are_other_directories(
    store: MemoryStore, cookie: Cookie, tmp_path: Path
) -> None:
    several = attrs.evolve(cookie, ledger_directories=(f"{tmp_path}/l1", f"{tmp_path}/l2"))
    await check(store, several)
    swapped = attrs.evolve(cookie, ledger_directories=(f"{tmp_path}/l2", f"{tmp_path}/l1"))
    with pytest.raises(CookieError, match="restore the directories in the configuration, in their order"):
        await check(store, swapped)


async def test_a_first_start_that_was_interrupted_with_data_goes_on_if_it_left_a_doubt(
    store: MemoryStore, cookie: Cookie
) -> None:
    await check(store, cookie)
    await store.delete(NODE)
    file = version_file(cookie.ledger_directories[0])
    file.with_name("0.log").write_bytes(b"data")
    with pytest.raises(CookieError):
        await check(store, cookie)
    file.with_name("DOUBT").write_bytes(b"the bookie is new\n")
    assert await check(store, cookie) is Verdict.NEW
