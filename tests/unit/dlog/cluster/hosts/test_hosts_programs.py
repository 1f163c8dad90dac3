"""The files of a host and its scripts, run by a real shell on this machine."""

# covers: dlog/cluster/hosts/programs.py

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import click
import pytest

from bookie.config.bookie_config import load_config
from dlog.cli.main import program
from dlog.cluster.hosts import programs
from dlog.cluster.hosts.channel import CommandOutcome, run_there
from dlog.cluster.hosts.hosts_file import Host, HostsFile, parse_hosts_file
from dlog.cluster.zookeeper_member import client_address

TEXT = """
[hosts.m1]
address = "10.0.0.1"
directory = "{directory}"
zookeeper = 1
http_port = 8000
environment = {{ DLOG_LOG_FORMAT = "json" }}
[hosts.m2]
address = "10.0.0.2"
directory = "{directory}/2"
zookeeper = 2
ledger_directories = ["/disk1, left", "/disk2"]
"""


@pytest.fixture
def file(tmp_path: Path) -> HostsFile:
    return parse_hosts_file(TEXT.format(directory=tmp_path / "m1"), Path("hosts.toml"))


async def done(file: HostsFile, command: programs.Command) -> CommandOutcome:
    return await run_there(file.hosts[0], command, timeout_s=60)


async def test_a_bookie_can_read_its_configuration(file: HostsFile, tmp_path: Path) -> None:
    for host in file.hosts:
        assert (await done(file, programs.write_bookie_files(file, host))).exit_code == 0
        config = load_config(Path(programs.HostPaths(host).bookie_config))
        assert config.address.advertised == host.address
        assert config.address.port == 3181
    assert list(map(str, config.storage.ledger_directories)) == ["/disk1, left", "/disk2"]
    assert (tmp_path / "m1" / "bk_server.conf").stat().st_mode & 0o077 == 0, "it may name a password"


async def test_a_configuration_that_an_operator_edited_is_kept(file: HostsFile, tmp_path: Path) -> None:
    command = programs.write_bookie_files(file, file.hosts[0])
    path = tmp_path / "m1" / "bk_server.conf"
    assert (await done(file, command)).output == ""
    assert (await done(file, command)).output == "", "nothing has changed"
    for number in (1, 2):
        path.write_text(f"edit={number}\n")
        kept = path.with_name(f"bk_server.conf.previous-{number}")
        assert (await done(file, command)).output.strip() == str(kept)
        assert kept.read_text() == f"edit={number}\n"
        assert path.read_text() == command.stdin


async def test_members_of_a_zookeeper_with_data_do_not_change(file: HostsFile, tmp_path: Path) -> None:
    one = file.hosts[0]
    assert (await done(file, programs.write_zookeeper_files(file, one))).exit_code == 0
    config, data = tmp_path / "m1" / "zoo.cfg", tmp_path / "m1" / "zookeeper"
    written = config.read_text()
    assert re.findall(r"server.*", written) == ["server.1=10.0.0.1:2888:3888", "server.2=10.0.0.2:2888:3888"]
    assert client_address(config) == ("10.0.0.1", 2181)
    assert (data / "myid").read_text() == "1"

    alone = attrs.evolve(file, hosts=(one,))
    assert (await done(file, programs.write_zookeeper_files(alone, one))).exit_code == 0, "it has no data yet"
    assert (await done(file, programs.write_zookeeper_files(file, one))).exit_code == 0
    (data / "version-2").mkdir()
    refused = await done(file, programs.write_zookeeper_files(alone, one))
    assert refused.exit_code == 1
    assert "members of a ZooKeeper with data cannot change" in refused.reason
    assert config.read_text() == written
    faster = attrs.evolve(file, zookeeper={"tickTime": "500"})
    assert (await done(file, programs.write_zookeeper_files(faster, one))).exit_code == 0


async def test_a_directory_of_another_member_is_refused(file: HostsFile, tmp_path: Path) -> None:
    one, two = file.hosts
    assert (await done(file, programs.write_zookeeper_files(file, one))).exit_code == 0
    hosts = (attrs.evolve(one, zookeeper=3), two)
    refused = await done(file, programs.write_zookeeper_files(attrs.evolve(file, hosts=hosts), hosts[0]))
    assert refused.exit_code == 1
    assert "is the directory of the member 1, not 3" in refused.reason
    assert (tmp_path / "m1" / "zookeeper" / "myid").read_text() == "1"


async def test_a_token_is_made_once_and_for_its_owner(file: HostsFile, tmp_path: Path) -> None:
    (tmp_path / "m1").mkdir()
    first = await done(file, programs.make_token(file.hosts[0]))
    assert re.fullmatch("[0-9a-f]{48}", first.output)
    assert (await done(file, programs.make_token(file.hosts[0]))).output == first.output
    assert (tmp_path / "m1" / "http.token").stat().st_mode & 0o077 == 0


def parse(words: Sequence[str]) -> dict[str, Any]:
    """The options of a command of `dlog`; an error for a command or an option that does not exist."""
    command: click.Command = program
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    return command.make_context(command.name, list(words)).params


def test_each_command_of_dlog_exists(file: HostsFile) -> None:
    host = attrs.evolve(file.hosts[0], environment={})
    assert programs.programs_of(host) == ("zookeeper", "bookie", "autorecovery")
    for command in (
        programs.show_programs(host),
        programs.create_metadata(file, host),
        programs.bind_namespace(file, host),
        programs.list_bookies(file, host),
        *(programs.stop_program(host, one, grace_s=9) for one in programs.programs_of(host)),
    ):
        assert command.words[0] == "dlog"
        parse(command.words[1:])
    for one in programs.programs_of(host):
        started = parse(programs.start_program(file, host, one, timeout_s=9).words[1:])
        assert (started["program"], started["timeout"]) == (one, 9)
        parse([one, *started["arguments"]])


def test_auto_recovery_serves_its_metrics_where_the_host_has_http(file: HostsFile) -> None:
    def words(host: Host) -> str:
        return " ".join(programs.start_program(file, host, "autorecovery", timeout_s=9).words)

    with_http, without = file.hosts
    assert words(with_http).endswith("--http-port 8001 --http-host 127.0.0.1")
    assert "--http" not in words(without)
    assert "--http-port 9000" in words(attrs.evolve(without, autorecovery_http_port=9000))


def test_the_environment_of_a_host_is_set_for_each_dlog(file: HostsFile) -> None:
    assert programs.check_dlog(file.hosts[0]).words == ("env", "DLOG_LOG_FORMAT=json", "dlog", "--version")
