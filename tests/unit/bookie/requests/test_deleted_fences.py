"""The ids of fenced and deleted ledgers: bounded, and strangers push out no real ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from bookie.bookie import Bookie, open_bookie
from bookie.disk.real_disk import RealDisk
from bookie.gc import tombstones as tombstone_files
from bookie.gc.tombstones import Tombstones
from bookie.ledger_metadata.live_ledgers import ServedLedgers, load_tombstones
from bookie.requests.fences import DeletedFences
from bookie.requests.new_ledgers import NewLedgers, NewLedgersConfig
from bookie.storage.config import StorageConfig
from ledger.codes import Code
from ledger.wire.messages import AddReply
from tests.fakes.connection_by_hand import Connection
from tests.fakes.service_by_hand import KEY, add


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=80), st.integers(1, 9), st.integers(1, 9)
)
def test_each_kind_keeps_its_newest_ids_up_to_its_bound(
    deleted: list[tuple[int, bool]], confirmed_max: int, unconfirmed_max: int
) -> None:
    fences = DeletedFences(confirmed_max=confirmed_max, unconfirmed_max=unconfirmed_max)
    for ledger_id, is_confirmed in deleted:
        fences.add(ledger_id, is_confirmed=is_confirmed)
    expected: set[int] = set()
    for kind, count_max in ((True, confirmed_max), (False, unconfirmed_max)):
        newest = dict.fromkeys(
            ledger_id for ledger_id, is_confirmed in reversed(deleted) if is_confirmed is kind
        )
        expected.update(list(newest)[:count_max])
    assert {ledger_id for ledger_id in range(31) if ledger_id in fences} == expected


async def delete_fenced(bookie: Bookie, served: ServedLedgers, ledger_id: int, *, is_confirmed: bool) -> None:
    """A peer begins and fences a ledger, and the bookie deletes it."""
    new_ledgers = bookie.service.new_ledgers
    assert new_ledgers is not None
    assert new_ledgers.admit(ledger_id)
    batch = bookie.storage.new_batch()
    bookie.storage.stage_fence(batch, bookie.storage.create_ledger(batch, ledger_id, KEY))
    await bookie.storage.submit_durably(batch)
    if is_confirmed:
        new_ledgers.forget([ledger_id])
    await served.delete_ledger(ledger_id)
    new_ledgers.forget([ledger_id])


@pytest.mark.slow
async def test_fences_of_strangers_do_not_let_the_writer_of_a_deleted_ledger_back_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie remembers so many fences; a stranger fences many more ledgers that do not exist."""
    monkeypatch.setattr(tombstone_files, "CONFIRMED_MAX", 4)
    monkeypatch.setattr(tombstone_files, "UNCONFIRMED_MAX", 3)
    config = StorageConfig(journal_directories=(tmp_path / "j",), ledger_directories=(tmp_path / "l",))

    def open_fences(bookie: Bookie) -> None:
        bookie.service.new_ledgers = NewLedgers(NewLedgersConfig(), trio.current_time)
        bookie.service.deleted_fences = DeletedFences(confirmed_max=4, unconfirmed_max=3)

    async def answer(bookie: Bookie, ledger_id: int) -> Code:
        (reply,) = await Connection(bookie.storage, service=bookie.service).ask(add(ledger_id, 5))
        assert isinstance(reply, AddReply)
        return reply.code

    async with open_bookie(config) as bookie:
        open_fences(bookie)
        served = ServedLedgers(
            bookie.service, await load_tombstones(bookie.service, tmp_path / "l", RealDisk())
        )
        await delete_fenced(bookie, served, 7, is_confirmed=True)
        for ledger_id in range(1000, 1040):
            await delete_fenced(bookie, served, ledger_id, is_confirmed=False)
        assert await answer(bookie, 7) is Code.FENCED
        assert await answer(bookie, 1039) is Code.FENCED
        assert await answer(bookie, 1000) is Code.OK
        assert len(bookie.service.deleted_fences._unconfirmed) == 3
    files = Tombstones.in_directory(RealDisk(), tmp_path / "l" / "current", lambda: 0)
    assert files.unconfirmed.read()[-1] == 1039
    assert (tmp_path / "l" / "current" / "TOMBS.UNCONFIRMED").stat().st_size <= 2 * 3 * 20
    async with open_bookie(config) as bookie:
        open_fences(bookie)
        await load_tombstones(bookie.service, tmp_path / "l", RealDisk())
        assert await answer(bookie, 7) is Code.FENCED, "also after a restart"
        assert await answer(bookie, 1039) is Code.FENCED


async def test_ledgers_deleted_together_keep_their_fences_also_one_that_comes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StorageConfig(journal_directories=(tmp_path / "j",), ledger_directories=(tmp_path / "l",))
    async with open_bookie(config) as bookie:
        served = ServedLedgers(
            bookie.service, await load_tombstones(bookie.service, tmp_path / "l", RealDisk())
        )
        storage = bookie.storage
        batch = storage.new_batch()
        for ledger_id in range(40):
            ledger = storage.create_ledger(batch, ledger_id, KEY)
            if ledger_id < 30:
                storage.stage_fence(batch, ledger)
        await storage.submit_durably(batch)
        assert served.tombstones is not None
        write, writes = Tombstones.add, 0

        async def write_and_fence(tombstones: Tombstones, *ledger_ids: int, is_confirmed: bool) -> None:
            nonlocal writes
            writes += 1
            await write(tombstones, *ledger_ids, is_confirmed=is_confirmed)
            if writes == 1:
                batch = storage.new_batch()
                late = storage.ledger(35)
                assert late is not None
                storage.stage_fence(batch, late)
                await storage.submit_durably(batch)

        monkeypatch.setattr(Tombstones, "add", write_and_fence)
        await served.delete_ledgers(range(40))
        assert (writes, storage.ledger_ids()) == (2, [])
    files = Tombstones.in_directory(RealDisk(), tmp_path / "l" / "current", lambda: 0)
    assert sorted(files.confirmed.read() + files.unconfirmed.read()) == [*range(30), 35]
