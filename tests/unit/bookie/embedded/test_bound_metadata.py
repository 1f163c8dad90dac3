"""Whether a bookie may delete ledgers that its metadata store does not list."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.disk.real_disk import RealDisk
from bookie.embedded.bound_metadata import (
    ACCEPT,
    METADATA,
    BoundMetadata,
    MetadataBinding,
    MetadataVerdict,
    bind_metadata,
    check_metadata,
    compare,
    decode_binding,
    encode_binding,
    ids_given_out,
    skip_ids,
)
from bookie.errors import MetadataLostError
from bookie.ledger_metadata.live_ledgers import ClusterChangedError
from ledger.catalog.ledger_ids import LedgerIds
from ledger.catalog.paths import INSTANCE_ID, Layout, ledger_path
from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store

ROOT, LAYOUT = "/ledgers", Layout.HIERARCHICAL


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with open_memory_store(MemoryTree()) as store:
        await store.create(ROOT)
        yield store


async def make_ledgers(store: MemoryStore, count: int) -> list[int]:
    made = []
    for _ in range(count):
        made.append(await LedgerIds(store, ROOT, LAYOUT).new())
        await store.create(ledger_path(ROOT, LAYOUT, made[-1]), b"metadata", parents=True)
    return made


async def bind(
    store: MemoryStore, directory: Path, on_disk: Sequence[int], disk: RealDisk | None = None
) -> BoundMetadata | None:
    return await bind_metadata(store, ROOT, LAYOUT, disk or RealDisk(), directory, on_disk)


def binding_in(directory: Path) -> MetadataBinding | None:
    return decode_binding((directory / METADATA).read_bytes())


@pytest.mark.parametrize(
    ("binding", "instance_id", "given_out", "on_disk", "named", "verdict"),
    [
        (MetadataBinding("a", 5), "a", 5, [1, 4], [], MetadataVerdict.OWN),
        (MetadataBinding("a", 5), "a", 9, [1, 8], [], MetadataVerdict.OWN),
        (MetadataBinding("a", 5), "a", 4, [1], [1], MetadataVerdict.OLDER),
        (MetadataBinding("a", 5), "a", 5, [5], [5], MetadataVerdict.OLDER),
        (MetadataBinding("a", 5), "b", 9, [], [], MetadataVerdict.FOREIGN),
        (None, "a", 0, [], [], MetadataVerdict.ADOPTED),
        (None, "a", 5, [1, 4], [1, 2, 4], MetadataVerdict.ADOPTED),
        (None, "a", 5, [1, 4], [1, 2], MetadataVerdict.UNNAMED),
        (None, "a", 4, [4], [4], MetadataVerdict.UNNAMED),
    ],
)
def test_the_verdict_table(
    binding: MetadataBinding | None,
    instance_id: str,
    given_out: int,
    on_disk: list[int],
    named: list[int],
    verdict: MetadataVerdict,
) -> None:
    assert compare(binding, instance_id, given_out, on_disk, named) is verdict


@pytest.mark.parametrize(
    ("noted", "found", "is_older"), [(0, 0, False), (7, 7, False), (7, 9, False), (7, 6, True)]
)
def test_a_store_without_the_last_change_is_older(noted: int, found: int, is_older: bool) -> None:
    verdict = compare(MetadataBinding("a", 5, noted), "a", 5, [1], [], found)
    assert verdict is (MetadataVerdict.OLDER if is_older else MetadataVerdict.OWN)


@given(st.integers(0, 10**18), st.integers(0, 10**18))
def test_the_file_is_read_as_it_was_written(given_out: int, last_change: int) -> None:
    binding = MetadataBinding("some-id", given_out, last_change)
    assert decode_binding(encode_binding(binding)) == binding


def test_the_file_of_a_release_without_changes_is_read() -> None:
    assert decode_binding(b"some-id 17\n") == MetadataBinding("some-id", 17, 0)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_binding_or_none(data: bytes) -> None:
    found = decode_binding(data)
    assert found is None or (found.instance_id and found.given_out >= 0)


async def test_the_next_id_is_known_and_ids_can_be_skipped(store: MemoryStore) -> None:
    assert await ids_given_out(store, ROOT, LAYOUT) == 0
    await skip_ids(store, ROOT, LAYOUT, 2)
    assert await LedgerIds(store, ROOT, LAYOUT).new() == 3
    assert await ids_given_out(store, ROOT, LAYOUT) == 4
    await skip_ids(store, ROOT, LAYOUT, 3)
    assert await ids_given_out(store, ROOT, LAYOUT) == 4, "nothing to skip"
    await skip_ids(store, ROOT, LAYOUT, 2500)
    assert await LedgerIds(store, ROOT, LAYOUT).new() == 2501


async def test_a_new_store_is_bound_and_recognised_again(store: MemoryStore, tmp_path: Path) -> None:
    assert await bind(store, tmp_path, []) is not None
    made = await make_ledgers(store, 3)
    live = await bind(store, tmp_path, made)
    assert live is not None
    await store.delete(ledger_path(ROOT, LAYOUT, made[1]))
    assert set(await live(made)) == {made[0], made[2]}
    assert binding_in(tmp_path) == MetadataBinding(
        (await store.get(f"{ROOT}/{INSTANCE_ID}")).value.decode(), 3
    )


async def test_an_older_store_is_always_refused_and_the_newer_one_accepted(
    store: MemoryStore, tmp_path: Path
) -> None:
    assert await bind(store, tmp_path, []) is not None
    instance_id = (await store.get(f"{ROOT}/{INSTANCE_ID}")).value
    made = await make_ledgers(store, 5)
    async with open_memory_store(MemoryTree()) as older:
        await older.create(ROOT)
        await older.create(f"{ROOT}/{INSTANCE_ID}", instance_id)
        await make_ledgers(older, 2)
        before = await ids_given_out(older, ROOT, LAYOUT)
        for _ in range(2):
            with pytest.raises(MetadataLostError, match=r"older.* 3 ledgers of this bookie: 2, 3, 4"):
                await bind(older, tmp_path, made)
            with pytest.raises(MetadataLostError, match="older"):
                await check_metadata(older, ROOT, LAYOUT, RealDisk(), tmp_path, made)
        assert await ids_given_out(older, ROOT, LAYOUT) == before, "nothing was changed"
    assert await bind(store, tmp_path, made) is not None


async def test_an_older_store_is_refused_though_the_ledgers_it_lacks_were_deleted(
    store: MemoryStore, tmp_path: Path
) -> None:
    live = await bind(store, tmp_path, [])
    instance_id = (await store.get(f"{ROOT}/{INSTANCE_ID}")).value
    made = await make_ledgers(store, 5)
    assert live is not None
    await live(made)
    async with open_memory_store(MemoryTree()) as older:
        await older.create(ROOT)
        await older.create(f"{ROOT}/{INSTANCE_ID}", instance_id)
        await make_ledgers(older, 2)
        with pytest.raises(MetadataLostError, match="older"):
            await bind(older, tmp_path, made[:1])


async def test_a_store_that_is_replaced_while_in_use_raises_an_error(
    store: MemoryStore, tmp_path: Path
) -> None:
    is_in_place = True
    live = await bind_metadata(store, ROOT, LAYOUT, RealDisk(), tmp_path, [], is_in_place=lambda: is_in_place)
    made = await make_ledgers(store, 2)
    assert live is not None
    assert set(await live(made)) == set(made)
    with pytest.raises(ClusterChangedError, match="older"):
        await live([*made, 2])
    is_in_place = False
    with pytest.raises(ClusterChangedError, match="bound"):
        await live(made)
    is_in_place = True
    await store.put(f"{ROOT}/{INSTANCE_ID}", b"another")
    with pytest.raises(ClusterChangedError, match="bound"):
        await live(made)


async def test_a_bookie_of_an_earlier_release_is_adopted_if_all_its_ledgers_are_named(
    store: MemoryStore, tmp_path: Path
) -> None:
    made = await make_ledgers(store, 3)
    await store.delete(ledger_path(ROOT, LAYOUT, made[1]))
    assert await bind(store, tmp_path, made) is None
    assert not (tmp_path / METADATA).exists()
    assert await bind(store, tmp_path, [made[0], made[2]]) is not None
    assert await bind(store, tmp_path, made) is not None, "the deleted ledger may be deleted here now"


async def test_a_damaged_file_is_not_adopted(store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / METADATA).write_bytes(b"")
    assert await bind(store, tmp_path, []) is None


async def test_a_full_disk_does_not_stop_a_round_that_frees_space(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    live = await bind(store, tmp_path, [], disk)
    made = await make_ledgers(store, 2)

    def full(path: Path, data: bytes) -> None:
        raise OSError(code, "cannot write")

    monkeypatch.setattr(disk, "replace_file", full)
    assert live is not None
    code = errno.EIO
    with pytest.raises(OSError, match="cannot write"):
        await live(made)
    code = errno.ENOSPC
    assert set(await live(made)) == set(made)


async def test_a_huge_id_on_the_disk_is_not_skipped_up_to(store: MemoryStore, tmp_path: Path) -> None:
    assert await bind(store, tmp_path, []) is not None
    (tmp_path / ACCEPT).touch()
    assert await bind(store, tmp_path, [2**40]) is not None
    assert await ids_given_out(store, ROOT, LAYOUT) == 0


async def test_another_store_is_refused_only_if_it_lacks_a_ledger(store: MemoryStore, tmp_path: Path) -> None:
    made = await make_ledgers(store, 3)
    (tmp_path / METADATA).write_bytes(encode_binding(MetadataBinding("another", 3)))
    assert await bind(store, tmp_path, made) is None, "a damaged binding costs the garbage collection only"
    await check_metadata(store, ROOT, LAYOUT, RealDisk(), tmp_path, made)
    await store.delete(ledger_path(ROOT, LAYOUT, made[1]))
    with pytest.raises(MetadataLostError, match=r"wiped.* 1 ledgers of this bookie: 1"):
        await bind(store, tmp_path, made)
    (tmp_path / ACCEPT).touch()
    await check_metadata(store, ROOT, LAYOUT, RealDisk(), tmp_path, made)
    assert (tmp_path / ACCEPT).exists(), "a reader changes nothing"


class Power:
    """A power failure at one step of the writes of a binding, before or after the step takes effect."""

    def __init__(self, step: int, *, after: bool) -> None:
        self.left, self.after, self.was_cut = step, after, False

    def cut(self, *, after: bool) -> bool:
        if after != self.after or self.was_cut:
            return False
        self.left -= 1
        self.was_cut = self.left < 0
        return self.was_cut


class FailingDisk(RealDisk):
    def __init__(self, power: Power) -> None:
        super().__init__()
        self.power = power

    def replace_file(self, path: Path, data: bytes) -> None:
        self._step(after=False)
        super().replace_file(path, data)
        self._step(after=True)

    def unlink(self, path: Path) -> None:
        self._step(after=False)
        super().unlink(path)
        self._step(after=True)

    def _step(self, *, after: bool) -> None:
        if self.power.cut(after=after):
            raise OSError(errno.EIO, "power")


def failing(store: MemoryStore, power: Power, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("create", "put", "commit"):

        def make(real: object) -> object:
            async def wrapped(*args: object, **more: object) -> object:
                if power.cut(after=False):
                    raise ConnectionLostError("/", "power")
                result = await real(*args, **more)  # type: ignore[operator]
                if power.cut(after=True):
                    raise ConnectionLostError("/", "power")
                return result

            return wrapped

        monkeypatch.setattr(store, name, make(getattr(store, name)))


def every_cut() -> Iterator[Power]:
    for step in range(6):
        for after in (False, True):
            yield Power(step, after=after)


async def test_a_crash_during_the_first_binding_leaves_no_lasting_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = 0
    for at, power in enumerate(every_cut()):
        directory = tmp_path / str(at)
        directory.mkdir()
        async with open_memory_store(MemoryTree()) as store:
            await store.create(ROOT)
            with monkeypatch.context() as patch:
                failing(store, power, patch)
                try:
                    await bind(store, directory, [], FailingDisk(power))
                except (OSError, ConnectionLostError):
                    cuts += 1
            assert await bind(store, directory, []) is not None
    assert cuts == 5, "the instance id, then the file in its two steps"


async def test_a_crash_while_a_store_is_accepted_accepts_it_at_most_once(
    store: MemoryStore, tmp_path: Path
) -> None:
    (tmp_path / METADATA).write_bytes(encode_binding(MetadataBinding("another", 2)))
    (tmp_path / ACCEPT).touch()
    with pytest.raises(OSError, match="power"):
        await bind(store, tmp_path, [5], FailingDisk(Power(1, after=False)))
    with pytest.raises(MetadataLostError):
        await bind(store, tmp_path, [5])
    (tmp_path / ACCEPT).touch()
    live = await bind(store, tmp_path, [5])
    assert live is not None
    assert await live([5]) == set()
    assert await make_ledgers(store, 1) == [6]
