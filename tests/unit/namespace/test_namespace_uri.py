from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlog.errors import InvalidUriError
from namespace.namespace_uri import NamespaceUri, parse_namespace_uri


@pytest.mark.parametrize(
    ("text", "hosts", "path"),
    [
        ("distributedlog://h1:2181;h2:2181/path", "h1:2181,h2:2181", "/path"),
        ("distributedlog://h1:2181,h2/a/b", "h1:2181,h2", "/a/b"),
        ("distributedlog-bk://127.0.0.1:2181/messaging/ns", "127.0.0.1:2181", "/messaging/ns"),
        ("DistributedLog://h/ns/", "h", "/ns"),
        ("distributedlog://[::1]:2181/ns", "[::1]:2181", "/ns"),
    ],
)
def test_both_separators_give_one_value(text: str, hosts: str, path: str) -> None:
    uri = parse_namespace_uri(text)
    assert uri == NamespaceUri("distributedlog", hosts, path)
    assert parse_namespace_uri(str(uri)) == uri


def test_a_directory_is_a_namespace() -> None:
    for text in ("file:///var/lib/my%20log", "file:/var/lib/my%20log", "file://localhost/var/lib/my%20log/"):
        uri = parse_namespace_uri(text)
        assert uri == NamespaceUri("file", "", "/var/lib/my log")
        assert str(uri) == "file:///var/lib/my%20log"
        assert parse_namespace_uri(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no scheme"),
        ("/path", "no scheme"),
        ("zk://h/p", "scheme 'zk'"),
        ("distributedlog-mem://h/p", "backend 'mem'"),
        ("distributedlog-://h/p", "backend ''"),
        ("distributedlog:/p", "'//' is missing"),
        ("distributedlog:///p", "hosts are missing"),
        ("distributedlog://h", "path is missing"),
        ("distributedlog://h/", "path is missing"),
        ("distributedlog://h//p", "not a node's"),
        ("distributedlog://h;/p", "'' is not a host"),
        ("distributedlog://h:0/p", "'h:0' is not a host"),
        ("distributedlog://h:65536/p", "'h:65536' is not a host"),
        ("distributedlog://h:x/p", "'h:x' is not a host"),
        ("distributedlog://user@h/p", "user name or a password"),
        ("distributedlog://h/p?q=1", "query"),
        ("distributedlog://h/p#f", "fragment"),
        ("file://otherhost/dir", "another machine"),
        ("file:///", "directory is missing"),
        ("file:dir", "begins with a slash"),
        ("file:/", "directory is missing"),
        ("file:///a%00b", "directory is missing"),
    ],
)
def test_an_invalid_uri_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidUriError, match=reason):
        parse_namespace_uri(text)


@pytest.mark.parametrize("name", [b"caf\xe9", "café".encode(), b"a b", b"50%", b"\xff\xfe"])
def test_the_bytes_of_a_directory_are_kept(name: bytes) -> None:
    path = b"/var/" + name
    parsed = parse_namespace_uri(Path(os.fsdecode(path)).as_uri())
    assert os.fsencode(parsed.path) == path
    assert parse_namespace_uri(str(parsed)) == parsed
    assert str(parsed) == Path(os.fsdecode(path)).as_uri()


def test_a_directory_may_be_given_by_its_bytes_as_python_reads_an_argument() -> None:
    assert os.fsencode(parse_namespace_uri(os.fsdecode(b"file:///var/caf\xe9")).path) == b"/var/caf\xe9"
