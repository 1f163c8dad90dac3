"""The order of starting and stopping on several hosts, and what a failure on one of them means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from dlog.cluster.hosts.channel import CommandOutcome
from dlog.cluster.hosts.hosted_cluster import HostedCluster
from dlog.cluster.hosts.hosts_file import Host, HostsFileError, parse_hosts_file
from dlog.cluster.hosts.programs import Command

FILE = parse_hosts_file(
    "".join(
        f'[hosts.m{number}]\naddress = "10.0.0.{number}"\nzookeeper = {number}\nhttp_port = 8000\n'
        for number in (1, 2, 3)
    ),
    Path("hosts.toml"),
)
TOKEN = "a-token-of-a-page"
SERVES, EXISTS, LOST = (
    CommandOutcome(0, '{"pid": 7, "log": "/log"}'),
    CommandOutcome(4),
    CommandOutcome(255, "", "no route", True),
)


def word_of(command: Command) -> str:
    """A command in a word or two."""
    words = command.words
    if words[0] != "dlog":
        return "token" if "http.token" in " ".join(words) else "files"
    if words[1:3] == ("daemon", "start"):
        programs = [word for word in words if word in ("zookeeper", "bookie", "autorecovery")]
        return f"start {programs[0]}"
    if words[1:3] == ("daemon", "stop"):
        return f"stop {words[3]}"
    return " ".join(words[1:3]) if words[1] != "--version" else "version"


class Hosts:
    """Hosts whose answers a test chooses: by (host, command), else by command, else success."""

    def __init__(self, answers: dict[str, CommandOutcome] | None = None) -> None:
        self.answers = {"token": CommandOutcome(0, TOKEN), **(answers or {})}
        self.done: list[tuple[str, str]] = []

    async def run(self, host: Host, command: Command, timeout_s: float) -> CommandOutcome:
        await trio.lowlevel.checkpoint()
        word = word_of(command)
        self.done.append((host.name, word))
        default = SERVES if word.startswith("start") else CommandOutcome(0)
        return self.answers.get(f"{host.name} {word}", self.answers.get(word, default))

    def words(self) -> list[str]:
        """The commands in their order, without repetitions by several hosts."""
        return list(dict.fromkeys(word for _, word in self.done))


def cluster(hosts: Hosts, *only: str) -> HostedCluster:
    return HostedCluster(FILE, only, run=hosts.run)


async def test_programs_start_in_order_and_the_metadata_are_made_once() -> None:
    hosts = Hosts()
    report = await cluster(hosts).start(timeout_s=60)
    assert hosts.words() == [
        *("version", "files", "token", "start zookeeper", "bookies init"),
        *("start bookie", "log list", "start autorecovery"),
    ]
    assert [word for _, word in hosts.done].count("bookies init") == 1
    assert [(one.host, one.program, one.state) for one in report.programs[:4]] == [
        ("m1", "zookeeper", "started"),
        ("m1", "bookie", "started"),
        ("m1", "autorecovery", "started"),
        ("m2", "zookeeper", "started"),
    ]
    assert dict(report.pages)["m2"] == f"http://127.0.0.1:8000/page#token={TOKEN}"
    assert (report.failures, report.reached) == ((), "")
    assert TOKEN not in repr(report)


@pytest.mark.parametrize("word", ["version", "files", "token"])
async def test_nothing_starts_before_every_host_is_reached_and_has_its_files(word: str) -> None:
    hosts = Hosts({f"m3 {word}": LOST})
    report = await cluster(hosts).start(timeout_s=60)
    assert not [each for each in hosts.words() if each.startswith("start")]
    assert [(failure.host, failure.reason) for failure in report.failures] == [("m3", "no route")]
    assert report.failures[0].is_unreachable
    assert report.reached != ""


async def test_a_second_start_leaves_what_runs_alone() -> None:
    hosts = Hosts({"bookies init": EXISTS, "start bookie": CommandOutcome(5, "", "bookie runs already")})
    report = await cluster(hosts).start(timeout_s=60)
    assert report.failures == ()
    assert {one.state for one in report.programs if one.program == "bookie"} == {"running"}


async def test_without_zookeeper_no_bookie_starts() -> None:
    hosts = Hosts({"m2 start zookeeper": CommandOutcome(1, "", "dlog: Java is missing")})
    report = await cluster(hosts).start(timeout_s=60)
    assert hosts.words()[-1] == "start zookeeper"
    assert str(report.failures[0]) == "m2: start zookeeper: Java is missing"
    assert "daemon start" in report.failures[0].command
    assert {(one.host, one.program) for one in report.programs} == {("m1", "zookeeper"), ("m3", "zookeeper")}


async def test_a_bookie_that_does_not_start_does_not_keep_the_others_from_serving() -> None:
    hosts = Hosts({"m2 start bookie": CommandOutcome(1, "", "port 3181 is in use")})
    report = await cluster(hosts).start(timeout_s=60)
    assert hosts.words()[-2:] == ["log list", "start autorecovery"]
    assert report.reached == "start bookies"
    assert [failure.host for failure in report.failures] == ["m2"]


async def test_only_the_named_hosts_are_worked_on() -> None:
    hosts = Hosts()
    await cluster(hosts, "m3").start(timeout_s=60)
    assert {name for name, _ in hosts.done} == {"m3"}
    with pytest.raises(HostsFileError, match="no host 'm4'; there are m1, m2, m3"):
        cluster(hosts, "m4")


async def test_bookies_stop_before_zookeeper_and_a_lost_host_holds_up_no_other() -> None:
    hosts = Hosts({"m2 stop bookie": LOST, "m1 stop bookie": CommandOutcome(0, "", "it was killed")})
    report = await cluster(hosts).stop(grace_s=9)
    words = [word for _, word in hosts.done]
    assert words.index("stop zookeeper") > max(
        words.index(one) for one in ("stop bookie", "stop autorecovery")
    )
    assert words[-3:] == ["stop zookeeper"] * 3
    assert [failure.host for failure in report.failures] == ["m2"]
    states = {(one.host, one.program): one.state for one in report.programs}
    assert (states["m1", "bookie"], states["m3", "bookie"]) == ("killed", "stopped")


async def test_the_status_joins_processes_and_registrations() -> None:
    running = [{"name": name, "pid": 7, "running": True, "log": "/l"} for name in ("zookeeper", "bookie")]
    ended = [{"name": "bookie", "pid": 7, "running": False, "log": "/l"}]
    states = [{"bookie": "10.0.0.1:3181", "state": "writable"}, {"bookie": "10.0.0.2:3181", "state": "away"}]
    hosts = Hosts(
        {
            "m1 daemon status": CommandOutcome(0, json.dumps(running)),
            "m2 daemon status": CommandOutcome(1, json.dumps(ended)),
            "m3 daemon status": LOST,
            "bookies list": CommandOutcome(0, json.dumps(states)),
        }
    )
    report = await cluster(hosts).status()
    shown = {(one.host, one.program): (one.state, one.bookie, one.is_well) for one in report.programs}
    assert shown["m1", "zookeeper"] == ("running", None, True)
    assert shown["m1", "bookie"] == ("running", "writable", True)
    assert shown["m1", "autorecovery"] == ("not started", None, False)
    assert shown["m2", "bookie"] == ("ended", "away", False)
    assert shown["m3", "bookie"] == ("unknown", "not registered", False)
    assert [failure.host for failure in report.failures] == ["m3"]
