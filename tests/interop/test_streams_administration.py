"""Row 9: what Apache's administration stores, we read, obey and write: access control, federation."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trio

import dlog
from dlog import Denial
from tests.interop.streams import TEST_TIMEOUT_S, StreamPlace
from tests.interop.table import proves


def run_tool(place: StreamPlace, tool: str, *arguments: str, path: str | None = None) -> str:
    """Run one of Apache's tools on a namespace; return its output."""
    uri = f"distributedlog://{place.originals.zookeeper_hosts}{path or place.path}"
    code, output = place.originals.run_java(
        "org.apache.distributedlog.tools.Tool", tool, *arguments, "-u", uri, "-f", name="tool"
    )
    assert code == 0, output
    return output


ADMIN = "org.apache.distributedlog.admin.DistributedLogAdmin"
ATTEMPTS_MAX = 10
TOOL = "org.apache.distributedlog.tools.DistributedLogTool"


@proves(9, "access control")
async def test_entries_that_java_s_tool_changes_are_read_obeyed_and_written_alike(place: StreamPlace) -> None:
    log = place.fresh_log()
    wanted = {Denial.DELETE, Denial.TRUNCATE}
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.namespace() as namespace:
            await namespace.create_log(log)
            await namespace.access.enable()
            await namespace.access.set(log, frozenset({Denial.ACQUIRE}))
            for _ in range(ATTEMPTS_MAX):
                # It reads our entry first. It ends without waiting for its write, which may get lost.
                await trio.to_thread.run_sync(
                    lambda: run_tool(place, ADMIN, "set_stream_acl", "-s", log, "-dd", "-dt")
                )
                found = await namespace.access.entries()
                if found.logs[log].denied == wanted:
                    break
            assert found.logs[log].denied == wanted
            with pytest.raises(dlog.AccessDeniedError):
                await namespace.delete_log(log)
            path = f"{place.path}/.acls/{log}"
            by_java = (await namespace.context.store.get(path)).value
            await namespace.access.set(log, frozenset(wanted))
            assert (await namespace.context.store.get(path)).value == by_java


@proves(9, "federated")
@pytest.mark.parametrize("binder", ["apache", "ours"])
async def test_logs_that_java_creates_in_a_federated_namespace_are_listed_and_written(
    place: StreamPlace, binder: str
) -> None:
    originals = place.originals
    path = f"/messaging/{originals.fresh('federated')}"
    uri = f"distributedlog://{originals.zookeeper_hosts}{path}"
    with trio.fail_after(TEST_TIMEOUT_S):
        async with place.namespace() as here:
            ledgers = here.context.client.root

        def prepare() -> None:
            if binder == "ours":
                cluster = f"zk://{originals.zookeeper_hosts}{ledgers}"
                bind = [sys.executable, "-m", "dlog.cli.main", "namespace", "bind", uri]
                subprocess.run([*bind, "--federated", "--ledgers", cluster], check=True)
                run_tool(place, TOOL, "create", "-r", "log", "-e", "1-3", path=path)
                return
            code, output = originals.run_java(
                "org.apache.distributedlog.tools.Tool",
                ADMIN,
                *("bind", "-l", ledgers, "-s", originals.zookeeper_hosts, "-c", "-f", "-fns"),
                uri,
                name="bind",
            )
            assert code == 0, output
            run_tool(place, TOOL, "create", "-r", "log", "-e", "1-3", path=path)

        await trio.to_thread.run_sync(prepare)
        async with dlog.open_namespace(uri) as namespace:
            names = await namespace.list_logs()
            assert len(names) == 3
            assert {await namespace.log_location(name) for name in names} <= {
                path,
                f"{path}/.subnamespaces/NS_0000000000",
            }
            async with namespace.open_writer(names[0]) as writer:
                await writer.append(b"by us", txid=1)
            async with namespace.open_reader(names[0], follow=False) as reader:
                assert [record.payload async for record in reader] == [b"by us"]
        await create_beside_java(place, path, names)


async def create_beside_java(place: StreamPlace, path: str, by_java: list[str]) -> None:
    """We create logs in a full namespace; Apache lists and reads them, creates one more, and refuses ours."""
    uri = f"distributedlog://{place.originals.zookeeper_hosts}{path}"
    config = dlog.NamespaceConfig(sub_namespace_logs_max=1, writer=dlog.WriterConfig(purge=False))
    async with dlog.open_namespace(uri, config=config) as namespace:
        for name in ("ours-1", "ours-2"):
            async with namespace.open_writer(name, create=True) as writer:
                await writer.append(name.encode(), txid=1)
        with pytest.raises(dlog.LogExistsError):
            await namespace.create_log(by_java[0])
        assert len({await namespace.log_location(name) for name in ("ours-1", "ours-2")}) == 2
        assert (await namespace.log_location("ours-2")).startswith(f"{path}/.subnamespaces/NS_")

        def beside() -> tuple[str, str, int]:
            run_tool(place, TOOL, "create", "-r", "later", "-e", "1", path=path)
            listed = run_tool(place, TOOL, "list", path=path)
            read = run_tool(place, TOOL, "dump", "-s", "ours-2", "-o", "-1", "-l", "1", path=path)
            again, _ = place.originals.run_java(
                "org.apache.distributedlog.tools.Tool",
                TOOL,
                *("create", "-r", "ours-", "-e", "2", "-u", uri, "-f"),
                name="again",
            )
            return listed, read, again

        listed, read, again = await trio.to_thread.run_sync(beside)
        assert all(name in listed for name in [*by_java, "ours-1", "ours-2"])
        assert "total records = 1" in read
        names = await namespace.list_logs()
        assert len(names) == len(by_java) + 3, "the last one is Apache's"
        assert {await namespace.log_location(name) for name in names}, "no log is in two places"
        assert again != 0
        await namespace.delete_log("ours-1")
    listed = await trio.to_thread.run_sync(lambda: run_tool(place, TOOL, "list", path=path))
    assert "ours-1" not in listed
