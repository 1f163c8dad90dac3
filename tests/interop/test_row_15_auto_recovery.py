"""Row 15: our auditor and worker beside Apache's, on bookies of both kinds, in Apache's nodes."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from ledger.client import LedgerClient
from ledger.codes import Code
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.replication import LedgerRestorer, ReplicationConfig, UnderReplicatedLedgers, current_auditor
from ledger.replication.auditor import Auditor
from ledger.replication.election import AuditorElection
from ledger.replication.worker import ReplicationWorker
from ledger.wire.messages import ReadRequest
from tests.interop.clients import TEST_TIMEOUT_S, our_client
from tests.interop.driver import Driver
from tests.interop.originals import Bookie, Cluster, Originals
from tests.interop.shell import Tools
from tests.interop.table import proves

ROOT = "/recovered"
AUTO_RECOVERY = "org.apache.bookkeeper.replication.AutoRecoveryMain"
PAYLOADS = [b"%d" % number * 30 for number in range(10)]
LEDGERS = 12


async def written(client: LedgerClient) -> list[int]:
    ledgers = []
    for _ in range(LEDGERS):
        async with await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2) as writer:
            await writer.append_many(PAYLOADS)
        ledgers.append(writer.ledger_id)
    return ledgers


async def wait_healed(client: LedgerClient, ledgers: Sequence[int], lost: Bookie) -> None:
    """Wait until no ensemble names the bookie; check that each replica has its entries."""
    for ledger_id in ledgers:
        while any(  # noqa: ASYNC110
            lost.id in ensemble.bookies for ensemble in (await client.metadata(ledger_id)).ensembles
        ):
            await trio.sleep(0.2)
        metadata = await client.metadata(ledger_id)
        for entry_id in range(len(PAYLOADS)):
            bookies = metadata.ensemble_for(entry_id).bookies
            for turn in range(metadata.write_quorum):
                request = ReadRequest(ledger_id, entry_id)
                bookie = bookies[(entry_id + turn) % len(bookies)]
                assert (await client.context.transport.call(bookie, request)).code is Code.OK
        async with await client.open(ledger_id) as reader:
            assert [entry.payload for entry in await reader.read(0, len(PAYLOADS) - 1)] == PAYLOADS


@proves(
    15,
    "Apache's worker restores what our auditor marked",
    "our worker restores what Apache's auditor marked",
    "one election",
    "Apache's shell shows our auditor and our marks",
)
async def test_auditors_and_workers_of_both_share_a_cluster(originals: Originals, driver: Driver) -> None:
    driver.ask("init_cluster", uri=originals.uri(ROOT, layout="hierarchical"))
    cluster = Cluster(originals, ROOT)
    await trio.to_thread.run_sync(cluster.add, "java", "java", "ours", "ours")
    tools = Tools(originals, cluster)
    with trio.fail_after(TEST_TIMEOUT_S):
        async with our_client(cluster) as client, open_zookeeper_store(originals.zookeeper_hosts) as session:
            marks = UnderReplicatedLedgers(session, ROOT, host_name="ours")
            await marks.prepare()
            election = AuditorElection(session, ROOT, "ours:3181")
            await election.wait_elected()
            await marks.mark(2**40, ["lost:3181"])
            command = ["listunderreplicated", "-printmissingreplica"]
            shown = await trio.to_thread.run_sync(tools.shell, "whoisauditor")
            assert "ours:3181" in shown
            shown = await trio.to_thread.run_sync(lambda: tools.shell(*command))
            assert str(2**40) in shown
            assert "lost:3181" in shown

            ledgers = await written(client)
            first, second = cluster.bookies[1:3]
            await trio.to_thread.run_sync(first.stop)
            auditor = Auditor(client.context, session, marks, ReplicationConfig())
            assert await auditor.audit() > 0
            apache = originals.processes.start(
                originals.fresh("autorecovery"),
                originals.java(AUTO_RECOVERY, "--conf", str(cluster.bookies[0].config)),
            )
            await wait_healed(client, ledgers, first)  # by Apache's worker: ours does not run yet
            while await marks.marked():  # noqa: ASYNC110
                await trio.sleep(0.2)  # the mark of a ledger that does not exist is removed, too
            assert await current_auditor(session, ROOT) == "ours:3181"

            await election.withdraw()
            while await current_auditor(session, ROOT) != cluster.bookies[0].id:  # noqa: ASYNC110
                await trio.sleep(0.2)
            await trio.to_thread.run_sync(first.start)
            config = ReplicationConfig()
            restorer = LedgerRestorer(client.context, session, config, lock_path=marks.lock_path)
            worker = ReplicationWorker(marks, restorer, config)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.run)
                for attempt in range(5):  # Apache's worker may be the quicker one for every ledger
                    if attempt > 0:
                        await trio.to_thread.run_sync(second.start)
                    for _ in range(8):  # both workers should get some
                        ledgers += await written(client)
                    await trio.to_thread.run_sync(second.stop)
                    await wait_healed(client, ledgers, second)
                    if worker.stats.ledgers_restored > 0:
                        break
                nursery.cancel_scope.cancel()
            assert worker.stats.ledgers_restored > 0
            assert apache.is_running
    await trio.to_thread.run_sync(lambda: apache.stop())
    await trio.to_thread.run_sync(cluster.stop)
