"""The node of a running balance: what it holds, and who has it."""

from __future__ import annotations

import pytest
import trio

from ledger.balancing.run_node import RunningBalance, decode_run, encode_run, held_run, running_balance
from ledger.errors import BalanceRunningError
from ledger.metadata_store.memory import MemoryTree, open_memory_store

RUN = RunningBalance("host", 1_700_000_000_000, 9, 4, 9000, 4000)


def test_what_is_written_is_read() -> None:
    assert decode_run(encode_run(RUN)) == RUN


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        b'{"version": 2}',
        encode_run(RUN).replace(b'"host": "host"', b'"host": 7'),
        encode_run(RUN).replace(b"4000", b"-1"),
        encode_run(RUN).replace(b"4000", b"true"),
    ],
)
def test_data_of_another_program_are_no_balance_of_ours_and_the_node_still_counts(data: bytes) -> None:
    assert decode_run(data) is None

    async def go() -> None:
        async with open_memory_store(MemoryTree()) as store:
            await store.create("/ledgers/underreplication/dlogbalance", data, parents=True)
            assert await running_balance(store, "/ledgers") == RunningBalance("", 0)

    trio.run(go)


async def test_one_program_has_the_node_and_its_end_frees_it() -> None:
    tree = MemoryTree()
    async with open_memory_store(tree) as first, open_memory_store(tree) as second:
        assert await running_balance(second, "/ledgers") is None
        seen: list[RunningBalance] = []
        async with held_run(first, "/ledgers", RUN):
            assert await running_balance(second, "/ledgers") == RUN
            with pytest.raises(BalanceRunningError, match="another balance on host runs"):
                async with held_run(second, "/ledgers", RUN, wait_s=0, on_wait=seen.append):
                    raise AssertionError("two programs have the node")
        assert seen == [RUN]
        async with held_run(second, "/ledgers", RUN, wait_s=0):
            pass
        assert await running_balance(first, "/ledgers") is None
