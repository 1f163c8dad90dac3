"""Row 4, a bookie of ours that lost its disks: its replies must not end a ledger in Apache's recovery."""

from __future__ import annotations

import shutil
from typing import Literal

import pytest
import trio

from ledger.catalog.metadata_codec import decode_metadata
from ledger.metadata import LedgerState
from tests.interop.clients import TEST_TIMEOUT_S, java_client, our_writing_client, some_payloads
from tests.interop.driver import Driver, DriverError
from tests.interop.killed_writers import end_by_java, stored_metadata
from tests.interop.originals import Bookie, Cluster, Originals
from tests.interop.table import proves

BEFORE, AFTER = some_payloads(9), some_payloads(3, salt="after ")


def _wipe(bookie: Bookie) -> None:
    bookie.kill()
    for directory in ("journal", "ledgers"):
        shutil.rmtree(bookie.home / directory)


@proves(4, "a bookie that lost its disks denies nothing")
@pytest.mark.parametrize("version", [2, 3])
async def test_java_does_not_close_a_ledger_too_early_when_a_bookie_lost_its_disks(
    originals: Originals, driver: Driver, version: Literal[2, 3]
) -> None:
    root = f"/limbo-{version}"
    await trio.to_thread.run_sync(
        lambda: driver.ask("init_cluster", uri=originals.uri(root, layout="hierarchical"))
    )
    cluster = Cluster(originals, root)
    try:
        with trio.fail_after(TEST_TIMEOUT_S):
            settings = {"dataIntegrityStampMissingCookies": "true"}
            lost, away, behind = await trio.to_thread.run_sync(
                lambda: cluster.add("ours", "ours", "ours", **settings)
            )
            doomed = await trio.to_thread.run_sync(originals.start_our_driver)
            ledger = await (await our_writing_client(doomed, cluster)).create((3, 3, 2))
            await ledger.add_many(BEFORE)
            # Only the first two bookies acknowledge the last entries.
            await trio.to_thread.run_sync(behind.kill)
            await ledger.add_many(AFTER)
            doomed.process.kill()
            await trio.to_thread.run_sync(away.kill)
            await trio.to_thread.run_sync(_wipe, lost)
            await trio.to_thread.run_sync(behind.start)
            await trio.to_thread.run_sync(lost.start)
            java = await java_client(driver, cluster, version)
            # If it replied "no such entry", it and the bookie that is behind would end the ledger too early.
            with pytest.raises(DriverError):
                await java.open(ledger.ledger_id)
            metadata = decode_metadata(await stored_metadata(cluster, ledger.ledger_id))
            assert metadata.state is not LedgerState.CLOSED
            await trio.to_thread.run_sync(away.start)
            end = await end_by_java(java, ledger.ledger_id)
            assert list(end.payloads) == [*BEFORE, *AFTER]
    finally:
        await trio.to_thread.run_sync(cluster.stop)
