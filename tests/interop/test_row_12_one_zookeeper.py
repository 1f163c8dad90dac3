"""Row 12: Java and our bookies in one ZooKeeper. Each side understands the nodes that the other writes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial

import attrs
import pytest
import trio

from bookie.identity.cookie import decode_cookie
from ledger.catalog.catalog import open_catalog
from ledger.catalog.paths import INSTANCE_ID, cookie_path
from ledger.client import LedgerClient
from ledger.digest import DigestType
from ledger.errors import NotEnoughBookiesError
from ledger.metadata_store.store import MetadataStore
from tests.interop.clients import PASSWORD, TEST_TIMEOUT_S, RemoteClient, java_client, our_client
from tests.interop.driver import Driver, DriverError
from tests.interop.originals import Bookie, Cluster, Kind, Originals
from tests.interop.shell import Tools, at_once, bookies_listed
from tests.interop.table import proves

NOT_ENOUGH_BOOKIES = -6
COOKIE_EXIT_CODE = 5  # of our bookies
PAYLOADS = [b"zero", b"one", b"two"]
KINDS: tuple[Kind, Kind] = ("java", "ours")


@pytest.fixture(scope="session")
def mixed(originals: Originals, driver: Driver) -> Iterator[Cluster]:
    """Two bookies of each side under a root that Java initialised. Tests leave all running and writable."""
    driver.ask("init_cluster", uri=originals.uri("/shared", layout="hierarchical"))
    cluster = Cluster(originals, "/shared")
    cluster.add("java", "ours", "java", "ours")
    yield cluster
    cluster.stop()


def node(originals: Originals, path: str) -> bytes:
    async def get(store: MetadataStore) -> bytes:
        return (await store.get(path)).value

    return originals.with_store(get)


def begin_cluster(originals: Originals, driver: Driver, maker: Kind, root: str, layout: str) -> None:
    """Create a cluster's metadata by Apache's ``initnewcluster`` or by our ``dlog bookies init``."""
    uri = originals.uri(root, layout=layout)
    if maker == "java":
        driver.ask("init_cluster", uri=uri)
        return
    command = [sys.executable, "-m", "dlog.cli.main", "bookies", "init", uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TEST_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert (
        subprocess.run(command, capture_output=True, timeout=TEST_TIMEOUT_S).returncode == 4
    )  # exists already


@proves(12, "layout")
@pytest.mark.parametrize(
    ("maker", "layout", "ledger_id"),
    [
        ("java", "longhierarchical", 2**40),
        ("java", "flat", None),
        ("ours", "hierarchical", 2**31 + 5),
        ("ours", "longhierarchical", 2**40),
    ],
)
async def test_both_clients_find_ledgers_in_a_cluster_initialised_by_either_side(
    originals: Originals, driver: Driver, maker: Kind, layout: str, ledger_id: int | None
) -> None:
    root = f"/{layout}-by-{maker}"
    await trio.to_thread.run_sync(begin_cluster, originals, driver, maker, root, layout)
    cluster = Cluster(originals, root)
    await trio.to_thread.run_sync(cluster.add, "ours" if maker == "java" else "java")
    try:
        with trio.fail_after(TEST_TIMEOUT_S):
            java = await java_client(driver, cluster)
            async with our_client(cluster) as client:
                mine = [await write_ours(client, 1), await write_ours(client, 1)]
                theirs = [await write_theirs(java, 1), await write_theirs(java, 1)]
                if ledger_id is not None:
                    mine.append(await write_ours(client, 1, ledger_id=ledger_id))
                    theirs.append(await write_theirs(java, 1, adv=True, ledger_id=ledger_id + 1))
                assert await client.ledger_ids() == sorted(mine + theirs)
                for each in theirs:
                    assert await read_by_us(client, each) == PAYLOADS
                for each in mine:
                    assert await read_by_java(java, each) == PAYLOADS
                await client.delete(theirs[0])
                await java.delete(mine[0])
                assert await client.ledger_ids() == sorted(mine[1:] + theirs[1:])
    finally:
        await trio.to_thread.run_sync(cluster.stop)


@proves(12, "instance id")
def test_both_sides_report_the_same_instance_id_and_their_cookies_contain_it(
    originals: Originals, mixed: Cluster
) -> None:
    instance_id = node(originals, f"{mixed.root}/{INSTANCE_ID}").decode()
    assert instance_id in Tools(originals, mixed).shell("whatisinstanceid")
    for bookie in mixed.bookies:
        assert decode_cookie(node(originals, cookie_path(mixed.root, bookie.id))).instance_id == instance_id


@proves(12, "instance id")
@pytest.mark.parametrize("maker", KINDS)
def test_no_bookie_of_either_side_starts_with_another_instance_id(
    originals: Originals, driver: Driver, maker: Kind
) -> None:
    root = f"/instances-by-{maker}"
    begin_cluster(originals, driver, maker, root, "hierarchical")
    cluster = Cluster(originals, root)
    cluster.add("java", "ours")
    cluster.stop()

    async def replace(store: MetadataStore) -> None:
        await store.put(f"{root}/{INSTANCE_ID}", b"00000000-0000-0000-0000-000000000000")

    originals.with_store(replace)
    codes = at_once(*(partial(fails_to_start, bookie) for bookie in cluster.bookies))
    for bookie, code in zip(cluster.bookies, codes, strict=True):
        assert code == COOKIE_EXIT_CODE if bookie.kind == "ours" else code != 0
        log = bookie.process.log.read_text("utf-8", "replace")
        assert "instance" in log
        assert "Cookie" in log or "cookie" in log


@proves(12, "cookies")
@pytest.mark.parametrize("first", KINDS)
def test_the_other_side_understands_and_checks_a_cookie(
    originals: Originals, driver: Driver, mixed: Cluster, first: Kind
) -> None:
    """One side writes the cookies of the directories and the node; the other side checks them."""
    second: Kind = "ours" if first == "java" else "java"
    stamped = Bookie(originals, first, mixed.root)
    stamped.start()
    stamped.stop()
    text = node(originals, cookie_path(mixed.root, stamped.id))
    cookie = decode_cookie(text)
    assert cookie.bookie_id == stamped.id
    assert cookie.journal_directories == (str(stamped.home / "journal"),)
    assert cookie.ledger_directories == (str(stamped.home / "ledgers"),)
    for directory in ("journal", "ledgers"):
        assert decode_cookie((stamped.home / directory / "current" / "VERSION").read_bytes()) == cookie

    # The directories belong to another bookie: refused.
    settings = {"journalDirectories": stamped.home / "journal", "ledgerDirectories": stamped.home / "ledgers"}
    other = Bookie(originals, second, mixed.root, settings=settings)
    # The same bookie, but with another, empty ledger directory: refused.
    elsewhere = {**settings, "ledgerDirectories": stamped.home / "empty"}
    incomplete = Bookie(originals, second, mixed.root, port=stamped.port, settings=elsewhere)
    codes = at_once(partial(fails_to_start, other), partial(fails_to_start, incomplete))
    assert all(code == COOKIE_EXIT_CODE if second == "ours" else code != 0 for code in codes)
    assert all(
        "ookie" in refused.process.log.read_text("utf-8", "replace") for refused in (other, incomplete)
    )
    assert node(originals, cookie_path(mixed.root, stamped.id)) == text
    # The same bookie with all of its directories, which are still empty: it starts on the other side.
    successor = Bookie(originals, second, mixed.root, port=stamped.port, settings=settings)
    successor.start()
    successor.stop()
    assert node(originals, cookie_path(mixed.root, stamped.id)) == text


@proves(12, "read-only switch seen by both")
async def test_both_clients_know_read_only_bookies_and_create_no_ledgers_on_them(
    originals: Originals, driver: Driver, mixed: Cluster
) -> None:
    with trio.fail_after(2 * TEST_TIMEOUT_S):
        java = await java_client(driver, mixed)
        async with our_client(mixed) as client:
            before = [await write_ours(client, 4), await write_theirs(java, 4)]
            ids = {bookie.id for bookie in mixed.bookies}
            await both_see(java, client, writable=ids, read_only=set())
            switched = mixed.bookies[:2]  # one of each side
            assert {bookie.kind for bookie in switched} == set(KINDS)
            await restart(switched, read_only=True)
            try:
                read_only = {bookie.id for bookie in switched}
                await both_see(java, client, writable=ids - read_only, read_only=read_only)
                assert (
                    bookies_listed(
                        await trio.to_thread.run_sync(Tools(originals, mixed).shell, "listbookies", "-ro")
                    )
                    == read_only
                )
                for _ in range(5):
                    for ledger_id in (await write_ours(client, 2), await write_theirs(java, 2)):
                        metadata = await client.metadata(ledger_id)
                        assert set(metadata.last_ensemble.bookies) == ids - read_only
                with pytest.raises(NotEnoughBookiesError):
                    await write_ours(client, 3)
                with pytest.raises(DriverError) as refused:
                    await write_theirs(java, 3)
                assert refused.value.code == NOT_ENOUGH_BOOKIES
                for ledger_id in before:  # read-only bookies serve their entries
                    assert await read_by_us(client, ledger_id) == PAYLOADS
                    assert await read_by_java(java, ledger_id) == PAYLOADS
            finally:
                with trio.CancelScope(shield=True):
                    await restart(switched, read_only=False)
            await both_see(java, client, writable=ids, read_only=set())


@proves(12, "both metadata codecs")
@pytest.mark.parametrize("version", [1, 2, 3])
async def test_each_side_understands_the_other_side_s_ledger_metadata_in_each_format(
    originals: Originals, driver: Driver, mixed: Cluster, version: int
) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        java = await java_client(driver, mixed)
        writer = await java_client(driver, mixed, ledgerMetadataVersion=version)
        async with our_client(mixed) as client:
            # An open ledger of Java: our client recovers, closes and reads it; Java understands the result.
            ledger = await writer.create((3, 2, 2), digest=DigestType.CRC32)
            for payload in PAYLOADS:
                await ledger.add(payload)
            metadata = await client.metadata(ledger.ledger_id)
            assert metadata.format_version == version
            assert await read_by_us(client, ledger.ledger_id) == PAYLOADS
            closed = await client.metadata(ledger.ledger_id)
            assert closed.format_version == version
            assert (closed.last_entry_id, closed.length_bytes) == (2, sum(map(len, PAYLOADS)))
            seen = await java.metadata(ledger.ledger_id)
            assert (seen["state"], seen["last_entry_id"], seen["length"]) == (
                "CLOSED",
                2,
                closed.length_bytes,
            )
            assert await read_by_java(java, ledger.ledger_id, digest=DigestType.CRC32) == PAYLOADS
            # A ledger of ours, in this format.
            mine = await write_ours(client, 3, digest=DigestType.CRC32)
            await rewrite(originals, mixed, mine, version)
            seen = await java.metadata(mine)
            assert (seen["state"], seen["last_entry_id"], seen["sizes"]) == ("CLOSED", 2, [3, 2, 2])
            assert await read_by_java(java, mine, digest=DigestType.CRC32) == PAYLOADS


async def rewrite(originals: Originals, cluster: Cluster, ledger_id: int, version: int) -> None:
    """Store a ledger's metadata by our codec in an older format."""

    async def put(store: MetadataStore) -> None:
        catalog = await open_catalog(store, cluster.root)
        found = await catalog.get(ledger_id)
        metadata = attrs.evolve(found.metadata, format_version=version)
        if version == 1:  # the format has no fields for these
            metadata = attrs.evolve(metadata, password=None, ctime_ms=None)
        await catalog.put(ledger_id, metadata, expected=found.version)

    await trio.to_thread.run_sync(originals.with_store, put)


async def write_ours(
    client: LedgerClient, size: int, *, ledger_id: int | None = None, digest: DigestType = DigestType.CRC32C
) -> int:
    quorum = min(size, 2)
    writer = await client.create(
        ensemble_size=size,
        write_quorum=quorum,
        ack_quorum=quorum,
        digest_type=digest,
        password=PASSWORD,
        ledger_id=ledger_id,
    )
    await writer.append_many(PAYLOADS)
    await writer.close()
    return writer.ledger_id


async def write_theirs(java: RemoteClient, size: int, *, adv: bool = False, ledger_id: int = 0) -> int:
    quorum = min(size, 2)
    if adv:
        ledger = await java.create((size, quorum, quorum), adv=True, ledger_id=ledger_id)
        for entry_id, payload in enumerate(PAYLOADS):
            await ledger.ask("add_at", entry_id=entry_id, payload=payload.hex())
    else:
        ledger = await java.create((size, quorum, quorum))
        await ledger.add_many(PAYLOADS)
    await ledger.close()
    return ledger.ledger_id


async def read_by_us(client: LedgerClient, ledger_id: int) -> list[bytes]:
    async with await client.open(ledger_id, password=PASSWORD) as reader:
        return [entry.payload for entry in await reader.read(0, reader.last_confirmed)]


async def read_by_java(
    java: RemoteClient, ledger_id: int, *, digest: DigestType = DigestType.CRC32C
) -> list[bytes]:
    ledger = await java.open(ledger_id, digest=digest)
    return await ledger.read(0, ledger.lac)


async def both_see(
    java: RemoteClient, client: LedgerClient, *, writable: set[str], read_only: set[str]
) -> None:
    """Return once both clients see these bookies. The deadline of the test is the only timeout."""
    membership = client.membership
    while membership.writable != writable or membership.readonly != read_only:
        await membership.wait_change()
    while True:
        seen = await java.ask("bookies")
        if (set(seen["writable"]), set(seen["read_only"])) == (writable, read_only):
            return
        await trio.sleep(0.05)


async def restart(bookies: list[Bookie], *, read_only: bool) -> None:
    def restart_all() -> None:
        for bookie in bookies:
            bookie.stop()
        waits: list[Callable[[], None]] = [bookie.launch(read_only=read_only) for bookie in bookies]
        for wait in waits:
            wait()

    await trio.to_thread.run_sync(restart_all)


def fails_to_start(bookie: Bookie) -> int:
    """Start a bookie that must not start; return its exit code."""
    bookie.launch()
    return bookie.process.wait_ended(timeout_s=TEST_TIMEOUT_S)
