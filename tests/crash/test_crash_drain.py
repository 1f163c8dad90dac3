"""`dlog bookie drain` under a writer: no append fails, and the bookie can be stopped for good afterwards."""

# covers: dlog/cli/operators/bookie/drain.py

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import trio

import dlog
from dlog.cluster import open_local_cluster
from dlog.cluster.layout import LEDGERS_ROOT, bookie_id
from ledger.client import open_ledger_client
from ledger.config import ClientConfig
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.transport.dial import dial_tcp

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 180


async def test_a_drained_bookie_is_in_no_open_ledger_and_with_move_in_none(tmp_path: Path) -> None:
    acknowledged: list[bytes] = []
    stop = trio.Event()

    async def write(writer: dlog.LogWriter) -> None:
        while not stop.is_set():
            payload = b"%d" % len(acknowledged)
            await writer.append(payload)
            acknowledged.append(payload)

    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(
            tmp_path / "cluster", bookie_count=4, session_timeout_ms=3000, has_page=True
        ) as cluster:
            service = ["--service", f"zk://{cluster.zookeeper_hosts}{LEDGERS_ROOT}"]
            members = {bookie_id(each): each for each in cluster.state.bookies}

            async def run(*arguments: str) -> tuple[int, str, str]:
                command = [sys.executable, "-m", "dlog.cli.main", "bookie", *arguments, *service]
                done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
                return done.returncode, done.stdout.decode(), done.stderr.decode()

            async def drain(bookie: str, *options: str) -> tuple[int, str, str]:
                url = f"http://127.0.0.1:{members[bookie].http_port}"
                token = str(cluster.paths.token)
                return await run("drain", bookie, "--url", url, "--token-file", token, *options)

            async with (
                dlog.open_namespace(cluster.uri) as namespace,
                open_zookeeper_store(cluster.zookeeper_hosts) as store,
                open_ledger_client(store, dial_tcp, ClientConfig(), root=LEDGERS_ROOT) as client,
            ):

                async def named() -> set[str]:
                    """The bookies of the last ensembles of all open ledgers."""
                    catalog = client.context.catalog
                    found = [(await catalog.get_newest(one)).metadata for one in await catalog.ledger_ids()]
                    return {
                        name for each in found if not each.is_closed for name in each.last_ensemble.bookies
                    }

                await namespace.create_log("orders")
                async with namespace.open_writer("orders") as writer:
                    await writer.append(b"first")
                    bookie = next(iter(await named()))

                    # A writer that appends nothing is reported, and the bookie stays read-only.
                    code, out, told = await drain(bookie, "--timeout", "2", "--json")
                    assert code == 1, told
                    result = json.loads(out)
                    assert (result["drained"], len(result["written"])) == (False, 1), told
                    assert "other writable bookies: 1" in result["written"][0]["reason"]
                    assert "dlog bookie readonly off" in told
                    assert bookie in await named()

                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(write, writer)
                        code, out, told = await drain(bookie, "--move", "--json")
                        assert code == 0, told
                        result = json.loads(out)
                        assert result["drained"]
                        assert result["not_moved"] == []
                        assert bookie not in await named()
                        index = list(members).index(bookie)
                        assert await cluster.terminate(index)
                        count = len(acknowledged)
                        while len(acknowledged) < count + 20:  # noqa: ASYNC110
                            await trio.sleep(0.01)
                        stop.set()

                code, out, told = await run("recover", bookie, "--dry-run", "--json")
                assert (code, json.loads(out)) == (0, []), told

                async with namespace.open_reader("orders") as reader:
                    assert (await anext(reader)).payload == b"first"
                    assert [(await anext(reader)).payload for _ in acknowledged] == acknowledged
