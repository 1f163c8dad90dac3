"""The hosts file: what it says, and the errors that name the host and the key."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import attrs
import pytest

from dlog.cluster.hosts.hosts_file import Host, HostsFile, HostsFileError, load_hosts_file, parse_hosts_file
from tests.places import ROOT

ORIGIN = Path("hosts.toml")
THREE = """
namespace = "shop"
[defaults]
dlog = "/opt/dlog/bin/dlog"
ssh_options = ["-p", "2222"]
ssh = "dlog@everywhere"
[bookie]
journalMaxGroupWaitMSec = 2
allowLoopback = true
[zookeeper]
tickTime = 1000
[hosts.m1]
address = "10.0.0.1"
ssh = "dlog@m1"
zookeeper = 2
[hosts.m2]
address = "10.0.0.2"
run = ["ip", "netns", "exec", "m2"]
zookeeper = 1
[hosts.m3]
address = "10.0.0.3"
directory = "/srv/dlog"
journal_directories = ["/disk1/journal"]
http_port = 8000
bookie_settings = { minUsableSizeForEntryLogCreation = 1 }
"""


def parsed(text: str) -> HostsFile:
    return parse_hosts_file(text, ORIGIN)


PAGE = (ROOT / "docs/running.md").read_text("utf-8").split("## Several hosts")[1].split("\n## ")[0]


def test_the_page_has_a_file_that_can_be_used_and_each_key() -> None:
    (example,) = re.findall(r"```text\n(\[defaults\].*?)```", PAGE, re.DOTALL)
    file = parsed(example)
    assert [host.zookeeper for host in file.members] == [1, 2, 3]
    first_cells = re.findall(r"^\| (`[^|]*) \|", PAGE, re.MULTILINE)
    named = {key for cell in first_cells for key in re.findall("`([a-z_]+)`", cell)}
    assert named - {"[defaults]"} == {field.name for field in attrs.fields(Host)} - {"name"}


def test_a_host_has_its_keys_and_those_of_the_defaults() -> None:
    file = parsed(THREE)
    one, two, three = file.hosts
    assert (one.dlog, one.ssh, one.ssh_options) == (("/opt/dlog/bin/dlog",), "dlog@m1", ("-p", "2222"))
    assert (two.ssh, two.run, two.ssh_options) == (None, ("ip", "netns", "exec", "m2"), ()), "run hides ssh"
    assert three.directory == PurePosixPath("/srv/dlog")
    assert three.journal_directories == (PurePosixPath("/disk1/journal"),)
    assert three.bookie_settings == {"minUsableSizeForEntryLogCreation": "1"}
    assert three.bookie_id == "10.0.0.3:3181"
    assert file.bookie == {"journalMaxGroupWaitMSec": "2", "allowLoopback": "true"}
    assert file.zookeeper == {"tickTime": "1000"}


def test_the_service_is_that_of_the_members_in_the_order_of_their_ids() -> None:
    file = parsed(THREE)
    assert str(file.service) == "zk+null://10.0.0.2:2181;10.0.0.1:2181/ledgers"
    assert file.uri == "distributedlog://10.0.0.2:2181;10.0.0.1:2181/shop"


def test_a_zookeeper_of_somebody_else_is_named_by_its_uri() -> None:
    file = parsed('service = "zk://a:2181;b:2181/bk"\n[hosts.m1]\naddress = "10.0.0.1"')
    assert (file.service.hosts, file.service.ledgers_root, file.members) == ("a:2181,b:2181", "/bk", ())


HOST = '[hosts.m1]\naddress = "10.0.0.1"\nzookeeper = 1\n'
OTHER = '[hosts.m2]\naddress = "10.0.0.1"\ndirectory = "/srv/2"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[hosts.m1]\nadress = 'a'", r"host 'm1': unknown key 'adress'; did you mean address\?"),
        ("host = 1", r"unknown key 'host'; did you mean hosts\?"),
        ("[defaults]\nssl = 'a'", r"\[defaults\]: unknown key 'ssl'"),
        ("", "no host; add a table"),
        ("[hosts.m1]\nzookeeper = 1", "host 'm1': address is missing"),
        ("[hosts.m1]\naddress = '::1'", "host 'm1': address: '::1' is no IPv4 address and no host name"),
        ("hosts = 3", "hosts must be a table"),
        ("[hosts]\nm1 = 3", "host 'm1' must be a table"),
        ("[hosts.'a b']\naddress = 'a'", "host 'a b': a name has letters"),
        (f"{HOST}bookie_port = '3181'", "host 'm1': bookie_port must be a port"),
        (f"{HOST}bookie_port = true", "host 'm1': bookie_port must be a port"),
        (f"{HOST}directory = 'dlog'", "host 'm1': directory must be an absolute path"),
        (f"{HOST}ledger_directories = '/a'", "host 'm1': ledger_directories must be a list of absolute"),
        (f"{HOST}run = []", "host 'm1': run must be a list of texts"),
        (f"{HOST}run = ['a']\nssh = 'b'", "host 'm1': ssh and run are two ways"),
        (f"{HOST}ssh = '-oProxyCommand=x'", "host 'm1': ssh: '-oProxyCommand=x' is no destination"),
        (f"{HOST}ssh_options = ['-v']", "host 'm1': ssh_options needs ssh"),
        (f"{HOST}environment = {{ A = 1 }}", "host 'm1': environment: A must be a name with a text"),
        (f"{HOST}bookie_settings = {{ bookiePort = 1 }}", "bookiePort follows from the key bookie_port"),
        (f'{HOST}bookie_settings = {{ a = "b\\nc" }}', "bookie_settings: a must be a text on one line"),
        (f'{HOST}[bookie]\n"a\\nb" = 1', "is no key of a properties file"),
        (
            f"{HOST}[bookie]\nzkServers = 'a'",
            r"\[bookie\]: zkServers follows from the key zookeeper or service",
        ),
        (f"{HOST}[zookeeper]\ndataDir = '/a'", r"\[zookeeper\]: dataDir follows from the key zookeeper_dir"),
        (f"{HOST}[zookeeper]\n'server.1' = 'a'", r"\[zookeeper\]: server.1 follows from the key zookeeper"),
        ("[hosts.m1]\naddress = 'a'\nzookeeper = 256", "host 'm1': zookeeper: the id of a member"),
        ("[hosts.m1]\naddress = 'a'", "no ZooKeeper: give hosts the key zookeeper"),
        (f"service = 'zk://a/b'\n{HOST}", "service names a ZooKeeper, and host 'm1' has the key"),
        ("service = 'etcd://a/b'\n[hosts.m1]\naddress = 'a'", "service: .* driver 'etcd' is not known"),
        (f"namespace = '/a b'\n{HOST}", "namespace: '/a b' is no path"),
        (f"{HOST}bookie = false", "no host has a bookie"),
        (f"{HOST}{OTHER}", "host 'm2': bookie_port: 3181 is that of host 'm1': bookie_port already"),
        (f"{HOST}http_port = 3181", "host 'm1': http_port: 3181 is that of host 'm1': bookie_port already"),
        (
            f"{HOST}http_port = 8000\nautorecovery_http_port = 8000",
            "host 'm1': autorecovery_http_port: 8000 is that of host 'm1': http_port already",
        ),
        (HOST + OTHER.replace("/srv/2", "/var/lib/dlog"), "host 'm2': directory: /var/lib/dlog is that"),
        (
            HOST + OTHER.replace(".1", ".2") + "zookeeper = 1",
            "host 'm2': zookeeper: 1 is that of host 'm1': zookeeper already",
        ),
        ("a = ", "not TOML"),
    ],
)
def test_an_error_names_the_host_and_the_key(text: str, message: str) -> None:
    with pytest.raises(HostsFileError, match=message) as caught:
        parsed(text)
    assert str(caught.value).startswith("hosts.toml")


def test_a_file_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(HostsFileError, match="cannot be read: No such file"):
        load_hosts_file(tmp_path / "hosts.toml")
    (tmp_path / "hosts.toml").write_bytes(b"\xff")
    with pytest.raises(HostsFileError, match="not UTF-8"):
        load_hosts_file(tmp_path / "hosts.toml")
