"""The commands that Apache's shell has for cookies, whole clusters and single ledgers."""

# covers: dlog/cli/operators/bookie/cookies.py
# covers: dlog/cli/operators/erase.py
# covers: dlog/cli/operators/ledger.py
# covers: dlog/cli/operators/ledger_checks.py

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from bookie.cluster.cluster_root import create_cluster
from bookie.identity.cookie import Cookie, decode_cookie, encode_cookie
from dlog.cli.main import main
from dlog.cli.operators import autorecovery, erase, ledger, ledger_checks
from ledger.catalog.paths import Layout, available_path, cookie_path
from ledger.deploy import Deployment
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from tests.unit.dlog.cli.operators.test_cli_autorecovery import CommandWorld

ID = "6f1cbd0e-6a0e-4f6a-9a4e-2f7f6c4b7c55"
URI = "zk://zk1/ledgers"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> CommandWorld:
    world = CommandWorld(capfd)

    @asynccontextmanager
    async def open_ledgers(service: object, *, read_only: bool = False) -> AsyncIterator[Deployment]:
        async with world.open_ledgers(service) as deployment:  # type: ignore[arg-type]
            yield deployment

    for module in (autorecovery, ledger, ledger_checks):
        monkeypatch.setattr(module, "open_ledgers", open_ledgers)
    return world


def test_a_cookie_is_created_shown_replaced_and_deleted(world: CommandWorld, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for file, journal in ((first, "/j1"), (second, "/j2,/j3")):
        made = world.dlog(
            "bookie", "cookie", "generate", "b9:1", "--journal-dirs", journal, "--ledger-dirs", "/l1,/l2",
            "--instance-id", ID, "--output-file", str(file),
        )  # fmt: skip
        assert made.code == 0, made.err
    assert decode_cookie(second.read_bytes()) == Cookie("b9:1", ("/j2", "/j3"), ("/l1", "/l2"), (), ID)
    command = ("bookie", "cookie")
    assert world.dlog(*command, "get", "b9:1").code == 3
    assert world.dlog(*command, "update", "b9:1", "--cookie-file", str(first), "--yes").code == 3
    assert world.dlog(*command, "delete", "b9:1", "--yes").code == 3
    assert world.dlog(*command, "create", "b9:1", "--cookie-file", str(first)).code == 0
    assert world.dlog(*command, "create", "b9:1", "--cookie-file", str(first)).code == 4
    assert world.dlog(*command, "get", "b9:1").out == first.read_text()
    assert world.dlog(*command, "update", "b9:1", "--cookie-file", str(second), "--yes").code == 0
    assert world.dlog(*command, "get", "b9:1", "--json").document == {
        "bookie": "b9:1",
        "journal_directories": ["/j2", "/j3"],
        "ledger_directories": ["/l1", "/l2"],
        "index_directories": [],
        "instance_id": ID,
        "layout_version": 5,
    }
    assert world.dlog(*command, "delete", "b9:1", "--yes").code == 0
    assert world.dlog(*command, "get", "b9:1").code == 3


def test_a_cookie_of_another_bookie_or_of_a_running_one_is_not_written(
    world: CommandWorld, tmp_path: Path
) -> None:
    file = tmp_path / "cookie"
    file.write_bytes(encode_cookie(Cookie("b1:1", ("/j",), ("/l",))))
    command = ("bookie", "cookie")
    assert world.dlog(*command, "create", "b2:1", "--cookie-file", str(file)).code == 2
    assert world.dlog(*command, "create", "b1:1", "--cookie-file", str(file)).code == 0
    assert world.dlog(*command, "update", "b1:1", "--cookie-file", str(file), "--yes").code == 5
    assert world.dlog(*command, "delete", "b1:1", "--yes").code == 5
    ledger_id, bookies = world.closed_ledger()
    world.running.remove(bookies[0])

    async def add(deployment: Deployment) -> None:
        await deployment.store.delete(cookie_path("/ledgers", "b1:1"))
        await deployment.store.create(cookie_path("/ledgers", bookies[0]), b"", parents=True)

    world.run(add)
    refused = world.dlog(*command, "delete", bookies[0], "--yes")
    assert (refused.code, f"1 ledgers name it: {ledger_id}" in refused.err) == (5, True)
    file.write_bytes(b"5\nnonsense")
    assert world.dlog(*command, "create", "b9:1", "--cookie-file", str(file)).code == 2


def test_a_ledger_is_checked_and_closed(world: CommandWorld) -> None:
    ledger_id, bookies = world.closed_ledger()
    sound = world.dlog("ledger", "check", "--json")
    assert (sound.code, sound.document) == (0, {"ledgers": 1, "problems": []})
    del world.bookies[bookies[1]].ledgers[ledger_id].entries[2]
    hole = world.dlog("ledger", "check", "--json")
    assert isinstance(hole.document, dict)
    assert [each["bookies"] for each in hole.document["problems"]] == [[bookies[1]]], "a hole in the middle"
    del world.bookies[bookies[0]].ledgers[ledger_id]
    found = world.dlog("ledger", "check", str(ledger_id), "--json")
    assert found.code == 1
    assert found.document == {
        "ledgers": 1,
        "problems": [
            {
                "ledger_id": ledger_id,
                "first_entry": 0,
                "last_entry": 3,
                "bookies": list(bookies[:2]),
                "reason": None,
            }
        ],
    }
    assert bookies[0] in world.dlog("ledger", "check").out
    closed = world.dlog("ledger", "recover", str(ledger_id), "--yes", "--json").document
    assert isinstance(closed, dict)
    assert (closed["state"], closed["last_entry_id"]) == ("CLOSED", 3)
    assert world.dlog("ledger", "check", "99").code == 3


def test_metadata_are_saved_compared_and_restored(world: CommandWorld, tmp_path: Path) -> None:
    ledger_id, _ = world.closed_ledger()
    file = tmp_path / "saved"
    assert world.dlog("ledger", "export", str(ledger_id), str(file)).code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert world.dlog("ledger", "export", str(ledger_id), str(file)).code == 2
    assert world.dlog("ledger", "diff", str(ledger_id), str(file)).code == 0
    assert world.dlog("ledger", "import", str(ledger_id), str(file), "--yes").code != 0
    assert world.dlog("ledger", "import", str(ledger_id), str(file), "--update", "--yes").code == 0
    other, _ = world.closed_ledger()
    compared = world.dlog("ledger", "diff", str(other), str(file))
    assert compared.code == (1 if compared.out or compared.err else 0)
    assert world.dlog("ledger", "delete", str(ledger_id), "--yes").code == 0
    assert world.dlog("ledger", "import", str(ledger_id), str(file), "--update", "--yes").code == 3
    assert world.dlog("ledger", "import", str(ledger_id), str(file), "--yes").code == 0
    assert world.dlog("ledger", "diff", str(ledger_id), str(file)).code == 0
    file.write_bytes(b"BookieMetadataFormatVersion\t9\nx")
    assert world.dlog("ledger", "import", "77", str(file), "--yes").code == 2


def test_a_cluster_is_erased_only_with_its_id_after_two_questions(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = MemoryTree()

    @asynccontextmanager
    async def open_store(service_uri: str) -> AsyncIterator[MemoryStore]:
        async with open_memory_store(tree) as store:
            yield store

    async def prepare() -> None:
        async with open_memory_store(tree) as store:
            await create_cluster(store, "/ledgers", Layout.FLAT, ID)

    async def layout_and_bookie(*, register: bool) -> bytes:
        async with open_memory_store(tree) as store:
            if register:
                await store.create(available_path("/ledgers", "b1:1"))
            else:
                await store.delete(available_path("/ledgers", "b1:1"))
            return (await store.get("/ledgers/LAYOUT")).value

    monkeypatch.setattr(erase, "open_store", open_store)
    trio.run(prepare)
    assert main(["bookies", "instance-id", URI]) == 0
    assert capfd.readouterr().out == f"{ID}\n"
    wanted = ["bookies", "nuke", URI, "--root", "/ledgers", "--instance-id"]
    asked: list[str] = []

    def confirm(text: str, **_: object) -> bool:
        asked.append(text)
        return True

    monkeypatch.setattr("click.confirm", confirm)
    trio.run(lambda: layout_and_bookie(register=True))
    assert main([*wanted, ID]) == 5
    assert len(asked) == 2
    assert main(["bookies", "format", URI, "--yes"]) == 5
    trio.run(lambda: layout_and_bookie(register=False))
    assert main(["bookies", "format", URI, "--yes"]) == 0
    assert main([*wanted, ID, "--yes"]) == 2  # the format gave it another id
    assert main(["bookies", "nuke", URI, "--root", "/other", "--instance-id", ID, "--yes"]) == 2
    capfd.readouterr()
    assert main(["bookies", "whatisinstanceid", URI]) == 0
    new_id = capfd.readouterr().out.strip()
    assert main(["bookies", "nukeexistingcluster", *wanted[2:], new_id, "--yes"]) == 0
    assert main(["bookies", "instance-id", URI]) == 3
