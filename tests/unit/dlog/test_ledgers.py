"""``dlog.open_ledgers``: a client for ledgers obeys the settings of every place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

import dlog
import dlog.ledgers
from dlog.errors import ConfigError, NamespaceNotBoundError
from ledger.deploy import Opening
from ledger.errors import ClusterNotFoundError
from ledger.metadata_store.errors import InvalidStoreAddressError

CLUSTER = "zk+hierarchical://zk1:2181/ledgers"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The calls that open a cluster; none of them reaches a network."""
    calls: list[tuple[str, Any]] = []

    def open_deployment(uri: str, opening: Opening) -> NoReturn:
        calls.append((uri, opening))
        raise ClusterNotFoundError(f"{uri}: there is nothing")

    monkeypatch.setattr(dlog.ledgers, "open_deployment", open_deployment)
    return calls


async def test_settings_of_file_environment_and_keyword_reach_the_client_of_ledgers(
    opened: list[tuple[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.toml"
    file.write_text(
        "connect_timeout_s = 3\nsession_timeout_ms = 4000\nadd_quorum_timeout_s = 5\n[bookies]\ntls = true\n"
    )
    monkeypatch.setenv("DLOG_SESSION_TIMEOUT_MS", "6000")
    with pytest.raises(NamespaceNotBoundError, match="there is nothing"):
        async with dlog.open_ledgers(
            CLUSTER, config_file=file, settings={"placement.policy": "rack-aware"}, read_only=True
        ):
            pass
    ((uri, opening),) = opened
    assert uri == CLUSTER
    assert (opening.connect_timeout_s, opening.session_timeout_ms) == (3, 6000)
    assert opening.config.add_quorum_timeout_s == 5
    assert opening.config.placement.policy.value == "rack-aware"
    assert opening.bookie_security.tls
    assert opening.read_only


async def test_tls_given_as_a_keyword_stands_in_place_of_the_bookie_security_of_a_file(
    opened: list[tuple[str, Any]], tmp_path: Path
) -> None:
    from ledger.auth.tls import client_context

    file = tmp_path / "client.toml"
    file.write_text("[bookies]\ntls = true\n")
    context = client_context()
    with pytest.raises(NamespaceNotBoundError):
        async with dlog.open_ledgers(CLUSTER, config_file=file, config=dlog.NamespaceConfig(tls=context)):
            pass
    ((_, opening),) = opened
    assert opening.config.transport.tls is context
    assert opening.bookie_security is None


@pytest.mark.slow
async def test_the_ledgers_of_a_directory_are_those_of_its_logs(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    async with dlog.open_namespace(uri) as ns, ns.open_writer("orders", create=True) as log:
        await log.append(b"one")
        ledger_id = (await ns.describe_log("orders")).segments[0].ledger_id
    async with dlog.open_ledgers(uri, read_only=True) as client:
        assert ledger_id in await client.ledger_ids()


async def test_a_directory_that_does_not_exist_is_refused_and_not_made(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(NamespaceNotBoundError, match="does not exist"):
        async with dlog.open_ledgers(missing.as_uri()):
            pass
    assert not missing.exists()


@pytest.mark.parametrize(
    ("uri", "settings", "message"),
    [
        (CLUSTER, {"write_quorums": 2}, "write_quorum"),
        ("file:///somewhere?session_timeout_ms=1000", {}, "session_timeout_ms"),
    ],
)
async def test_a_wrong_setting_is_refused_and_nothing_is_opened(
    uri: str, settings: dict[str, object], message: str, opened: list[tuple[str, Any]]
) -> None:
    with pytest.raises((ConfigError, NamespaceNotBoundError), match=message):
        async with dlog.open_ledgers(uri, settings=settings):
            pass
    assert opened == []


async def test_settings_in_the_query_of_a_cluster_of_ledgers_are_refused() -> None:
    with pytest.raises(InvalidStoreAddressError):
        async with dlog.open_ledgers(f"{CLUSTER}?connect_timeout_s=2"):
            pass
