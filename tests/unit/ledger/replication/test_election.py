"""The election of the auditor, with the votes of Apache's auditors."""

from __future__ import annotations

import pytest
import trio

from ledger.metadata_store.errors import ConnectionLostError
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.replication.election import AuditorElection, current_auditor, votes_in_order
from tests.fakes.dict_bookies import ENDS_WITHIN_S

PATH = "/ledgers/underreplication/auditorelection"


def test_votes_are_ordered_by_number_and_other_nodes_are_none() -> None:
    names = ["V_0000000010", "V_0000000009", "W_0000000001", "V_x", "V_10000000000"]
    assert votes_in_order(names) == ["V_0000000009", "V_0000000010", "V_10000000000"]


async def test_the_smallest_vote_wins_and_the_next_one_follows_it() -> None:
    tree = MemoryTree()
    with trio.fail_after(ENDS_WITHIN_S):
        async with open_memory_store(tree) as second:
            async with open_memory_store(tree) as first:
                await first.create("/ledgers")
                assert await current_auditor(first, "/ledgers") is None
                await AuditorElection(first, "/ledgers", "b1:3181").wait_elected()
                vote = await first.get(f"{PATH}/V_0000000000")
                assert vote.value == b'bookieId: "b1:3181"\n'
                assert vote.stat.ephemeral_owner == first.session_id
                assert (await first.get(PATH)).value == b'bookieId: "b1:3181"\n'
                elected = trio.Event()

                async def follow() -> None:
                    await AuditorElection(second, "/ledgers", "b2:3181").wait_elected()
                    elected.set()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(follow)
                    await trio.testing.wait_all_tasks_blocked()
                    assert not elected.is_set()
                    assert await current_auditor(second, "/ledgers") == "b1:3181"
                    await first.aclose()
            assert await current_auditor(second, "/ledgers") == "b2:3181"


async def test_a_candidate_that_withdraws_leaves_no_vote() -> None:
    async with open_memory_store(MemoryTree()) as store:
        election = AuditorElection(store, "/ledgers", "b1:3181")
        await store.create("/ledgers")
        await election.withdraw()
        with trio.fail_after(ENDS_WITHIN_S):
            await election.wait_elected()
        await election.withdraw()
        assert await current_auditor(store, "/ledgers") is None


async def test_a_session_keeps_only_its_first_vote() -> None:
    async with open_memory_store(MemoryTree()) as store:
        for _ in range(2):
            await store.create(f"{PATH}/V_", ephemeral=True, sequential=True, parents=True)
        with trio.fail_after(ENDS_WITHIN_S):
            await AuditorElection(store, "/ledgers", "b1:3181").wait_elected()
        assert (await store.children(PATH)).names == ("V_0000000000",)


async def test_a_vote_whose_reply_was_lost_counts() -> None:
    class LossyStore(MemoryStore):
        is_lossy = True

        async def create(self, path: str, value: bytes = b"", **options: bool) -> str:
            made = await super().create(path, value, **options)
            if options.get("sequential") and self.is_lossy:
                self.is_lossy = False
                raise ConnectionLostError(path)
            return made

    store = LossyStore(MemoryTree())
    await store.create("/ledgers")
    election = AuditorElection(store, "/ledgers", "b1:3181")
    with pytest.raises(ConnectionLostError):
        await election.wait_elected()
    with trio.fail_after(ENDS_WITHIN_S):
        await election.wait_elected()
    assert (await store.children(PATH)).names == ("V_0000000000",)
    await store.aclose()
