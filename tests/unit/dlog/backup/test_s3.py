"""Backups at a server that speaks the protocol of S3."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlog
from dlog.backup import BackupError, BackupInUseError, BackupUnreachableError, open_backups
from dlog.backup.s3 import LEASE_MS, WRITER, S3Destination
from ledger.runtime.clock import wall_ms
from tests.unit.dlog.backup.test_backups import append, records_of, restore

pytestmark = pytest.mark.slow


@pytest.fixture
def destination(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A prefix in a bucket of a server of this process, whose URI has no keys."""
    pytest.importorskip("pyarrow")
    from moto.server import ThreadedMotoServer

    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    make = urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT")
    urllib.request.urlopen(make).close()
    yield f"s3://bucket/shop?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    server.stop()


async def test_backups_are_made_verified_pruned_and_restored(destination: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    async with dlog.open_namespace(source.as_uri()) as namespace:
        for payload in (b"one", b"two"):
            async with namespace.open_writer("orders", create=True) as writer:
                await writer.append(payload * 1000)
            await namespace.backup.make(destination)
    async with open_backups(destination) as backups:
        found = await backups.verify()
        assert found.is_sound
        assert (found.backups, found.chunks) == (2, 2)
        assert (await backups.prune(1)).manifests == 1
    await restore(destination, tmp_path / "restored")  # type: ignore[arg-type]
    uri = (tmp_path / "restored").as_uri()
    assert await records_of(uri, "orders") == await records_of(source.as_uri(), "orders")


async def test_another_process_is_kept_away_until_it_is_silent_or_dead(
    destination: str, tmp_path: Path
) -> None:
    await append(tmp_path / "source", "orders", b"x")
    one, other = S3Destination(destination), S3Destination(destination)
    one.begin(create=True)
    async with dlog.open_namespace((tmp_path / "source").as_uri()) as namespace:
        with pytest.raises(BackupInUseError, match=f"process {os.getpid()}"):
            await namespace.backup.make(destination)
        for writer, renewed_ms in (
            (f"elsewhere {os.getpid()} a", wall_ms() - LEASE_MS),
            (dead_writer(), wall_ms()),
        ):
            one.put(WRITER, json.dumps({"writer": writer, "renewed_ms": renewed_ms}).encode())
            other.begin(create=True)
            other.end()
        one.begin(create=True)
        other.put(WRITER, json.dumps({"writer": "elsewhere 1 a", "renewed_ms": wall_ms()}).encode())
        with pytest.raises(BackupInUseError, match="has begun to write"):
            one.settle()  # before a manifest


def dead_writer() -> str:
    """The name of a process of this host that is no more."""
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return f"{os.uname().nodename} {process} a"


@pytest.mark.parametrize(
    "authority", ["key:secret@bucket", "key@bucket", "key:secret/with/slashes@bucket", "key:secret"]
)
def test_a_key_in_the_uri_is_refused_and_not_quoted(authority: str) -> None:
    with pytest.raises(BackupError, match="AWS_SECRET_ACCESS_KEY") as caught:
        S3Destination(f"s3://{authority}/shop?region=us-east-1")
    assert "secret" not in str(caught.value)


def test_a_prefix_may_have_the_sign_that_ends_a_key() -> None:
    where = S3Destination("s3://bucket/me@work?endpoint_override=127.0.0.1:9&region=us-east-1").where
    assert where == "s3://bucket/me@work"


async def test_a_server_that_is_away_is_an_error(tmp_path: Path) -> None:
    uri = "s3://bucket/shop?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1"
    with pytest.raises(BackupUnreachableError):
        S3Destination(uri).get("lock")
    with pytest.raises(BackupError, match="name a prefix"):
        S3Destination("s3://bucket?region=us-east-1")
