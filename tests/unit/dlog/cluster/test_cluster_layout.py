"""The directory of a local cluster as values and text."""

# covers: dlog/cluster/layout.py

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie.config.properties import parse_properties
from dlog.cluster.layout import (
    ClusterPaths,
    ClusterState,
    ClusterStateError,
    Member,
    bookie_config_text,
    decode_state,
    encode_state,
    name_the_index,
    new_state,
)
from dlog.cluster.process import ProcessId

ORIGIN = Path("cluster.json")
processes = st.none() | st.builds(ProcessId, st.integers(1, 2**22), st.integers(0), st.text(max_size=36))
members = st.builds(Member, st.text(max_size=10), st.integers(1, 65535), processes)
states = st.builds(ClusterState, members, st.lists(members, max_size=5).map(tuple))


@given(states)
def test_a_state_survives_encoding(state: ClusterState) -> None:
    assert decode_state(encode_state(state), ORIGIN) == state


@given(st.text() | st.recursive(st.integers() | st.text(), st.lists).map(repr))
def test_other_text_is_rejected_with_the_name_of_the_file(text: str) -> None:
    with pytest.raises(ClusterStateError, match=r"cluster\.json"):
        decode_state(text, ORIGIN)


def test_the_error_for_another_version_says_how_to_stop() -> None:
    text = encode_state(new_state(3, [1, 2, 3, 4])).replace('"version": 1', '"version": 2')
    with pytest.raises(ClusterStateError, match="stop the cluster with the version that started it"):
        decode_state(text, ORIGIN)


def test_replacing_a_process_changes_one_member() -> None:
    state = new_state(3, [10, 11, 12, 13])
    one = ProcessId(7, 8, "boot")
    changed = state.with_process("bookie-2", one)
    assert [member.process for member in changed.members] == [None, None, one, None]
    assert changed.with_process("bookie-2", None) == state


@pytest.mark.parametrize("name", ["plain", "with, comma", "back\\slash", "bläk"])
def test_a_bookies_configuration_survives_parsing(name: str) -> None:
    paths = ClusterPaths(Path("/srv") / name)
    state = new_state(1, [2181, 3181])
    settings = parse_properties(bookie_config_text(paths, state, state.bookies[0]))
    assert settings["journalDirectories"].values == (str(paths.home("bookie-1") / "journal"),)
    assert settings["bookiePort"].first == "3181"
    assert settings["metadataServiceUri"].first == "zk+null://127.0.0.1:2181/ledgers"
    assert settings["allowLoopback"].first == "true"


def test_a_state_has_the_uri_of_the_namespace() -> None:
    assert new_state(3, [2181, 1, 2, 3]).uri == "distributedlog://127.0.0.1:2181/dlog"
    assert attrs.evolve(new_state(1, [5, 6])).zookeeper_hosts == "127.0.0.1:5"


def test_a_bookie_s_file_from_before_the_key_of_the_index_keeps_its_index(tmp_path: Path) -> None:
    config = tmp_path / "bk_server.conf"
    config.write_text("# bookie-1 of a local cluster, written by `dlog cluster start`\nbookiePort=1\n")
    name_the_index(config)
    assert config.read_text().endswith("\nbookiePort=1\nledgerStorageClass=DbLedgerStorage\n")
    once = config.read_text()
    name_the_index(config)
    assert config.read_text() == once


@pytest.mark.parametrize(
    "text",
    [
        "# written by hand\nbookiePort=1\n",
        "# bookie-1, written by `dlog cluster start`\nledgerStorageClass = SortedLedgerStorage\n",
    ],
)
def test_a_bookie_s_file_of_an_operator_or_with_the_key_stays_as_it_is(tmp_path: Path, text: str) -> None:
    config = tmp_path / "bk_server.conf"
    config.write_text(text)
    name_the_index(config)
    assert config.read_text() == text
