"""A bookie of three loses its disk, and `dlog bookie replace-disk` brings it back, as an operator does it."""

# covers: dlog/cli/operators/bookie/replacement.py

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import dlog
from dlog.cluster import ClusterError, open_local_cluster
from dlog.cluster.layout import LEDGERS_ROOT, bookie_id
from dlog.cluster.registry import query_registrations

pytestmark = [pytest.mark.cluster, pytest.mark.zookeeper, pytest.mark.slow]
TEST_TIMEOUT_S = 240
PAYLOADS = [b"%d" % number * 50 for number in range(400)]
LOGS = ("orders", "payments", "refunds")


async def bookie_command(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "dlog.cli.main", "bookie", *arguments]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_an_emptied_bookie_of_three_is_replaced_and_another_one_may_die(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster:
            lost = bookie_id(cluster.state.bookies[0])
            home = cluster.paths.home(cluster.state.bookies[0].name)
            config = str(cluster.paths.bookie_config(cluster.state.bookies[0].name))
            service = ["--service", f"zk://{cluster.zookeeper_hosts}{LEDGERS_ROOT}"]
            async with dlog.open_namespace(cluster.uri) as namespace:
                for name in LOGS:
                    await namespace.create_log(name)
                    async with namespace.open_writer(name) as writer:
                        await writer.append_many(PAYLOADS)
                    async with namespace.open_writer(name) as writer:
                        await writer.append_many(PAYLOADS)
            cluster.kill(0)
            for directory in ("journal", "ledgers"):
                shutil.rmtree(home / directory)
            found = None
            while found is None or lost in found:
                found = await query_registrations(cluster.zookeeper_hosts, timeout_s=5)

            # The circle of before: each step names the command that ends it.
            with pytest.raises(ClusterError, match="dlog bookie replace-disk --config FILE"):
                await cluster.restart(0)
            for arguments, expected in (
                (("recover", lost, "--yes"), 1),
                (("cookie", "delete", lost, "--yes"), 5),
            ):
                code, _, told = await bookie_command(*arguments, *service)
                assert (code, "dlog bookie replace-disk --config FILE" in told) == (expected, True), told

            # With the others away too, there are too few copies.
            await cluster.terminate(1)
            await cluster.terminate(2)
            code, out, told = await bookie_command(
                "replace-disk", "--config", config, "--yes", "--json", "--start"
            )
            assert code == 1, told  # and it ended: a bookie without its entries is not started
            refused = json.loads(out)
            assert (refused["started"], refused["done"]) == (False, False)
            assert refused["ledgers"] == len(refused["problems"]) == 2 * len(LOGS)
            assert "nothing was changed" in told
            assert [
                path for path in home.rglob("*") if path.is_file() and path.name != "bk_server.conf"
            ] == []
            await cluster.restart(1)
            await cluster.restart(2)

            code, out, told = await bookie_command("replace-disk", "--config", config, "--yes", "--json")
            assert code == 0, told
            done = json.loads(out)
            assert done == {
                "bookie": lost,
                "ledgers": 2 * len(LOGS),
                "started": True,
                "done": True,
                "problems": [],
            }
            await cluster.restart(0)
            cluster.kill(1)
            cluster.kill(2)
            async with dlog.open_namespace(cluster.uri) as namespace:
                for name in LOGS:
                    async with namespace.open_reader(name, follow=False) as reader:
                        assert [record.payload async for record in reader] == PAYLOADS * 2


async def test_with_start_the_bookie_serves_after_the_replacement_until_a_signal(tmp_path: Path) -> None:
    with trio.fail_after(TEST_TIMEOUT_S):
        async with open_local_cluster(tmp_path / "cluster", session_timeout_ms=3000) as cluster:
            lost = bookie_id(cluster.state.bookies[0])
            home = cluster.paths.home(cluster.state.bookies[0].name)
            config = str(cluster.paths.bookie_config(cluster.state.bookies[0].name))
            async with dlog.open_namespace(cluster.uri) as namespace:
                await namespace.create_log("orders")
                async with namespace.open_writer("orders") as writer:
                    await writer.append_many(PAYLOADS)
            cluster.kill(0)
            for directory in ("journal", "ledgers"):
                shutil.rmtree(home / directory)
            found = None
            while found is None or lost in found:
                found = await query_registrations(cluster.zookeeper_hosts, timeout_s=5)

            command = [sys.executable, "-m", "dlog.cli.main", "bookie", "replace-disk", "--config", config]
            process = await trio.lowlevel.open_process(
                [*command, "--yes", "--start", "--json"], stdout=subprocess.PIPE
            )
            try:
                assert process.stdout is not None
                out = b""
                while not out.endswith(b"}\n"):
                    got = await process.stdout.receive_some()
                    assert got, out
                    out += got
                assert json.loads(out)["done"]
                # It is registered by its own start: the one of the replacement has ended.
                while found is None or lost not in found:
                    found = await query_registrations(cluster.zookeeper_hosts, timeout_s=5)
                cluster.kill(1)
                cluster.kill(2)
                async with (
                    dlog.open_namespace(cluster.uri) as namespace,
                    namespace.open_reader("orders", follow=False) as reader,
                ):
                    assert [record.payload async for record in reader] == PAYLOADS
                process.terminate()
                assert await process.wait() == 0
            finally:
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()
