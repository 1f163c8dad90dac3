"""The configuration as operators see it: no secret is in it."""

from __future__ import annotations

from bookie.config.bookie_config import parse_config

FILE = """
metadataServiceUri=zk://zk1:2181/ledgers
journalDirectories=/j
ledgerDirectories=/l1,/l2
tlsKeyStorePasswordPath=/secrets/pass
httpServerKeyStorePassword=hunter2
bookiePort=${env:PORT}
"""


def test_the_shown_configuration_has_the_files_keys_without_secrets() -> None:
    config = parse_config(FILE, "f", {"PORT": "3181"})
    assert "hunter2" not in str(config.shown)
    assert "hunter2" not in repr(config)
    assert config.shown["ledgerDirectories"] == "/l1,/l2"
    assert config.shown["tlsKeyStorePasswordPath"] == "/secrets/pass"
    assert config.shown["httpServerKeyStorePassword"] == "***"
    assert config.shown["bookiePort"] == "${env:PORT}"  # a value of the environment may be a secret
