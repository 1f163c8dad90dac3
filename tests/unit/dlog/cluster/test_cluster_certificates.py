"""The files of a secured local cluster."""

# covers: dlog/cluster/certificates.py

from __future__ import annotations

import stat
from pathlib import Path

import attrs

from bookie.config.bookie_config import parse_config
from dlog.cluster.certificates import write_security
from dlog.cluster.layout import ClusterPaths, bookie_config_text, decode_state, encode_state, new_state
from ledger.transport.bookie_security import load_bookie_security

URI = "distributedlog://127.0.0.1:1/dlog"


def test_the_files_are_private_made_once_and_made_again_after_an_interruption(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path)
    (tmp_path / "security.new").mkdir()
    (tmp_path / "security.new" / "authority.key").write_text("half")
    write_security(paths, URI)
    assert {stat.S_IMODE(file.stat().st_mode) for file in paths.security.iterdir()} == {0o600}
    assert stat.S_IMODE(paths.security.stat().st_mode) == 0o700
    first = {file.name: file.read_bytes() for file in paths.security.iterdir()}
    write_security(paths, URI)
    assert {file.name: file.read_bytes() for file in paths.security.iterdir()} == first
    tls, auth = load_bookie_security(paths.bookie_security).open()
    assert tls is not None
    assert auth is None


def test_bookies_of_a_secured_cluster_demand_a_client_certificate(tmp_path: Path) -> None:
    state = attrs.evolve(new_state(1, [2181, 3181]), secure=True)
    assert decode_state(encode_state(state), tmp_path) == state
    text = bookie_config_text(ClusterPaths(tmp_path), state, state.bookies[0])
    config = parse_config(text, "bk_server.conf", {})
    assert config.server.tls_required
    assert config.tls is not None
    assert config.tls.demand_client_certificate
    plain = bookie_config_text(ClusterPaths(tmp_path), attrs.evolve(state, secure=False), state.bookies[0])
    assert "tls" not in plain
