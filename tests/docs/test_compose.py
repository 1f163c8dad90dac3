"""examples/container/compose.yaml: consistent, and its programs make a cluster as processes."""

from __future__ import annotations

import random
import re
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from dlog.cli.main import main
from dlog.cluster.ports import free_ports
from tests.docs.test_kubernetes_page import CONTAINERFILE, parsed
from tests.fakes.zookeeper_server import open_zookeeper_process
from tests.places import ROOT
from tests.unit.bookie.test_bookie_process import started

PLACE = ROOT / "examples" / "container"
COMPOSE: dict[str, Any] = yaml.safe_load((PLACE / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONFIG = (PLACE / "bk_server.conf").read_text("utf-8")
OURS = {name: each for name, each in SERVICES.items() if each["image"].startswith("dlog:")}
INIT = re.compile(r"dlog (bookies init (\S+)) \|\| \[ \$\$\? -eq 4 \]")


def test_each_command_exists_and_names_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    shell = OURS["cluster"]
    assert shell["entrypoint"] == ["sh", "-c"]
    found = INIT.fullmatch(shell["command"][0])
    assert found is not None
    assert parsed(found[1].split()) == "bookies init"
    commands = {name: parsed(each["command"]) for name, each in OURS.items() if name != "cluster"}
    assert set(commands.values()) == {"autorecovery", "bookie", "bookies list", "exporter", "log list"}
    volumes = {line.split(":")[0] for each in SERVICES.values() for line in each.get("volumes", [])}
    assert volumes == {*COMPOSE["volumes"], "./bk_server.conf"}
    for each in SERVICES.values():
        assert set(each.get("depends_on", ())) <= SERVICES.keys()
        for name, wait in each.get("depends_on", {}).items():
            is_job = SERVICES[name].get("restart") == "no"
            assert wait["condition"] == ("service_completed_successfully" if is_job else "service_healthy")
    assert main(["config", "check", str(PLACE / "bk_server.conf"), "--strict"]) == 0, capsys.readouterr()


def test_the_image_is_that_of_the_containerfile() -> None:
    build = OURS["exporter"]["build"]
    assert (PLACE / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).read_text("utf-8") == CONTAINERFILE
    assert all(each["read_only"] and each["cap_drop"] == ["ALL"] for each in OURS.values())


def test_bookies_differ_in_their_names_and_disks_only() -> None:
    bookies = {name: dict(each) for name, each in OURS.items() if name.startswith("bookie")}
    assert {each.pop("hostname") for each in bookies.values()} == bookies.keys()
    disks = [line for each in bookies.values() for line in each.pop("volumes") if not line.startswith(".")]
    assert len(disks) == len(set(disks)) == 6
    first, *others = bookies.values()
    assert all(each == first for each in others)


@asynccontextmanager
async def running(words: list[str]) -> AsyncIterator[trio.Process]:
    process = await trio.lowlevel.open_process([sys.executable, "-m", "dlog.cli.main", *words])
    try:
        yield process
    finally:
        process.terminate()
        with trio.CancelScope(shield=True):
            await process.wait()


async def scraped(port: int, line: str) -> None:
    def read() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
                return str(reply.read(), "utf-8")
        except OSError:
            return ""  # it still starts

    while line not in await trio.to_thread.run_sync(read):  # noqa: ASYNC110
        await trio.sleep(0.2)


@pytest.mark.cluster
@pytest.mark.zookeeper
async def test_the_services_make_a_cluster_as_processes(tmp_path: Path) -> None:
    ports = iter(free_ports(8, random.Random(), host="127.0.0.1"))

    def here(words: list[str], hosts: str, port: int) -> list[str]:
        texts = [each.replace("zookeeper:2181", hosts).replace("0.0.0.0", "127.0.0.1") for each in words]
        return [re.sub(r"^(127\.0\.0\.1:)?(8080|9188)$", rf"\g<1>{port}", each) for each in texts]

    with trio.fail_after(180):
        async with open_zookeeper_process(tmp_path / "zookeeper") as server, AsyncExitStack() as stack:
            found = INIT.fullmatch(OURS["cluster"]["command"][0])
            assert found is not None
            for words in (found[1].split(), OURS["namespace"]["command"]):
                command = [sys.executable, "-m", "dlog.cli.main", *here(words, server.hosts, 0)]
                await trio.run_process(command, capture_stdout=True)
            for name in [name for name in OURS if name.startswith("bookie")]:
                text = CONFIG.replace("zookeeper:2181", server.hosts).replace("0.0.0.0", "127.0.0.1")
                text = text.replace("=/", f"={tmp_path}/{name}-")
                text = text.replace("=3181", f"={next(ports)}").replace("=8080", f"={next(ports)}")
                file = tmp_path / f"{name}.conf"
                file.write_text(
                    f"{text}allowLoopback=true\ndiskUsageThreshold=1.0\ndiskUsageWarnThreshold=1.0\n"
                )
                await (await stack.enter_async_context(started(file))).wait_ready()
            recovery, exporter = next(ports), next(ports)
            for name, port in (("autorecovery", recovery), ("exporter", exporter)):
                await stack.enter_async_context(running(here(OURS[name]["command"], server.hosts, port)))
            await scraped(exporter, 'dlog_bookies{state="writable"} 3\n')
            await scraped(exporter, "dlog_autorecovery_auditor 1.0\n")
            await scraped(recovery, "replication_worker_copied_bytes_total 0\n")
