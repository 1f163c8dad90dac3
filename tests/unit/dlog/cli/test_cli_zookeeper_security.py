"""Commands beside a ZooKeeper whose nodes belong to one identity."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import ledger
from dlog.cli.main import main
from dlog.cluster.zookeeper_process import start_zookeeper, stop_zookeeper
from ledger.deploy.deployment import open_client
from ledger.metadata_store.zookeeper_security import (
    ENVIRONMENT_VARIABLE,
    NO_SECURITY,
    load_zookeeper_security,
)


def refused(uri: str) -> None:
    async def stranger() -> None:
        async with open_client(uri, security=NO_SECURITY):
            pass

    with pytest.raises(ledger.MetadataStoreError, match="access denied"):
        trio.run(stranger)


@pytest.mark.zookeeper
def test_a_command_with_the_identity_owns_the_cluster_that_it_creates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    (tmp_path / "password").write_text("secret\n")
    settings = tmp_path / "zookeeper.toml"
    settings.write_text("scheme = 'digest'\nusername = 'dlog'\npassword_file = 'password'\n")
    server = trio.run(start_zookeeper, tmp_path / "zookeeper")
    try:
        uri = f"zk+hierarchical://{server.hosts}/secure/ledgers"
        own = ("--zk-security", str(settings))
        assert main([*own, "bookies", "init", uri]) == 0
        assert main([*own, "ledger", "list", "--service", uri]) == 0
        capfd.readouterr()
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
        # The same settings as a section of the client's configuration.
        monkeypatch.setenv("DLOG_CONFIG", "")
        file = tmp_path / "dlog.toml"
        file.write_text(f"[zookeeper]\n{settings.read_text()}")
        assert main(["--config", str(file), "ledger", "list", "--service", uri]) == 0
        other = f"zk+hierarchical://{server.hosts}/other/ledgers"
        assert main(["--config", str(file), "bookies", "init", other]) == 0
        refused(other)
        capfd.readouterr()
        monkeypatch.setenv("DLOG_CONFIG", "")
        assert main(["ledger", "list", "--service", uri]) == 8
        assert "access denied" in capfd.readouterr().err
        (tmp_path / "password").write_text("rotated\n")
        assert main([*own, "ledger", "list", "--service", uri]) == 8
        refused(uri)
    finally:
        trio.run(stop_zookeeper, server.identity)
    assert load_zookeeper_security(settings).read_password() == "rotated"
