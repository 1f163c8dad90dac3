from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ledger.catalog.paths import available_path
from ledger.catalog.service_info import LOCATION_PROPERTY, Endpoint, ServiceInfo, encode_service_info
from ledger.errors import LocationError
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.placement.config import AnnouncedLocations, FixedLocations, ScriptLocations, TableLocations
from ledger.placement.locations import make_locator, parse_script_output, parse_table
from ledger.placement.membership import Membership, open_membership
from ledger.placement.topology import parse_location

ROOT = "/ledgers"


@pytest.fixture
async def membership() -> AsyncIterator[Membership]:
    """Three bookies: 10.0.0.1:3181 announces nothing, ``named`` a location, ``wrong:1`` an invalid one."""
    async with open_memory_store(MemoryTree()) as store:
        await store.create(available_path(ROOT, "10.0.0.1:3181"), parents=True)
        endpoint = Endpoint("bookie", 3181, "10.0.0.2", "bookie-rpc")
        info = ServiceInfo((endpoint,), {LOCATION_PROPERTY: "/eu/r7"})
        await store.create(available_path(ROOT, "named"), encode_service_info(info))
        wrong = ServiceInfo((), {LOCATION_PROPERTY: "nowhere"})
        await store.create(available_path(ROOT, "wrong:1"), encode_service_info(wrong))
        async with open_membership(store, ROOT) as membership:
            yield membership


def script(path: Path, body: str) -> ScriptLocations:
    file = path / "topology.sh"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return ScriptLocations(path=file, arguments_max=2, timeout_s=5.0)


async def test_a_script_gets_the_hosts_in_portions(tmp_path: Path, membership: Any) -> None:
    body = f'echo "$#" >> {tmp_path}/calls; for host in "$@"; do echo "/rack-of-$host"; done'
    locator = make_locator(script(tmp_path, body), membership)
    assert await locator.locate(["10.0.0.1:3181", "named", "10.0.0.3:3181"]) == {
        "10.0.0.1:3181": "/rack-of-10.0.0.1",
        "named": "/rack-of-10.0.0.2",
        "10.0.0.3:3181": "/rack-of-10.0.0.3",
    }
    assert (tmp_path / "calls").read_text().split() == ["2", "1"]


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("exit 3", "exit status 3"),
        ("echo /r1 /r2", "2 words for 1 hosts"),
        ("echo r1", "no network location"),
    ],
)
async def test_a_failure_of_a_script_names_the_script_and_the_cause(
    tmp_path: Path, membership: Any, body: str, cause: str
) -> None:
    with pytest.raises(LocationError, match=f"topology.sh.*{cause}"):
        await make_locator(script(tmp_path, body), membership).locate(["10.0.0.1:3181"])
    with pytest.raises(LocationError, match=r"missing\.sh failed"):
        await make_locator(ScriptLocations(path=tmp_path / "missing.sh"), membership).locate(["b:1"])


async def test_a_script_that_takes_too_long_is_stopped(tmp_path: Path, membership: Any) -> None:
    slow = ScriptLocations(path=script(tmp_path, "exec sleep 60").path, timeout_s=0.05)
    with trio.fail_after(60), pytest.raises(LocationError, match=r"topology\.sh took longer than 0\.05 s"):
        await make_locator(slow, membership).locate(["10.0.0.1:3181"])


async def test_a_table_is_read_again_when_it_has_changed(tmp_path: Path, membership: Any) -> None:
    file = tmp_path / "topology.table"
    file.write_text("# hosts\n10.0.0.1 /r1   # by host\nnamed\t/r2\n\n")
    locator = make_locator(TableLocations(path=file), membership)
    bookies = ["10.0.0.1:3181", "named", "10.0.0.9:3181"]
    assert await locator.locate(bookies) == {"10.0.0.1:3181": "/r1", "named": "/r2"}
    file.write_text("10.0.0.9:3181 /r9\n")
    os.utime(file, ns=(1, 1))
    assert await locator.locate(bookies) == {"10.0.0.9:3181": "/r9"}
    file.unlink()
    with pytest.raises(LocationError, match=r"topology\.table cannot be read"):
        await locator.locate(bookies)


async def test_locations_are_read_from_the_announcements_of_bookies(membership: Any) -> None:
    locator = make_locator(AnnouncedLocations(), membership)
    assert await locator.locate(["10.0.0.1:3181", "named", "wrong:1", "gone:1"]) == {"named": "/eu/r7"}


async def test_locations_are_taken_from_the_settings(membership: Any) -> None:
    locator = make_locator(FixedLocations({"10.0.0.2": "/r1/", "10.0.0.1:3181": "/r2"}), membership)
    assert await locator.locate(["10.0.0.1:3181", "named", "x:1"]) == {"named": "/r1", "10.0.0.1:3181": "/r2"}


def test_a_table_line_that_does_not_parse_is_named() -> None:
    with pytest.raises(LocationError, match="table, line 2: 3 words"):
        parse_table("a /r1\nb /r2 /r3\n", "table")
    with pytest.raises(LocationError, match="table, line 1: 'r1' is no network location"):
        parse_table("a r1", "table")


@given(st.text())
def test_any_table_parses_or_is_refused(text: str) -> None:
    try:
        table = parse_table(text, "table")
    except LocationError:
        return
    assert all(parse_location(location) == location for location in table.values())


@given(st.binary(), st.lists(st.text(), max_size=3))
def test_any_output_of_a_script_parses_or_is_refused(output: bytes, hosts: list[str]) -> None:
    try:
        found = parse_script_output(output, hosts, "script")
    except LocationError:
        return
    assert len(found) == len(hosts)
    assert all(parse_location(location) == location for location in found)
