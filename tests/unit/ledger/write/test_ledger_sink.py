"""An error in the handling of a reply ends its writer by name, and no other one."""

from __future__ import annotations

import pytest

from ledger.errors import LedgerWriteError
from tests.fakes.dict_bookies import DictCluster


async def test_a_writer_that_fails_at_a_reply_ends_with_an_error_of_ours_and_the_others_go_on(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client:
        faulty, other = await client.create(), await client.create()
        assert await faulty.append(b"one") == 0

        def fail(*_args: object) -> range:
            raise RuntimeError("half-made")

        monkeypatch.setattr(faulty._writer, "adds_answered", fail)
        with pytest.raises(LedgerWriteError, match=r"failed at a reply of bookie .*RuntimeError: half-made"):
            await faulty.append(b"two")
        with pytest.raises(LedgerWriteError, match="half-made"):
            await faulty.append(b"three")
        assert await other.append(b"one") == 0
        await other.close()
        monkeypatch.undo()
        await faulty.close()
        async with await client.open(faulty.ledger_id) as reader:
            assert (await reader.read(0, reader.last_confirmed))[0].payload == b"one"


async def test_a_writer_that_fails_at_the_loss_of_a_bookie_ends_too(
    cluster: DictCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.client() as client:
        faulty, other = await client.create(), await client.create()
        assert await faulty.append(b"one") == 0

        def fail(*_args: object, **_more: object) -> bool:
            raise RuntimeError("half-made")

        monkeypatch.setattr(faulty._repair, "on_bookie_failed", fail)
        for bookie in cluster.bookies.values():
            bookie.is_silent = True
        entry_id = faulty.submit(b"two")
        faulty.send_now()
        await cluster.stop("b1:1", registered=True)
        with pytest.raises(LedgerWriteError, match="half-made"):
            await faulty.wait_confirmed(entry_id)
        for bookie in cluster.bookies.values():
            bookie.is_silent = False
        cluster.revive("b1:1")
        assert await other.append(b"one") == 0
        await other.close()
