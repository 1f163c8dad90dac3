"""`dlog bookie gc` and a running bookie with an HTTP server."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trio

from dlog.cli.main import main
from tests.unit.bookie.http.test_admin import serving

pytestmark = pytest.mark.slow


async def dlog(*arguments: str) -> int:
    return await trio.to_thread.run_sync(partial(main, arguments))


def at(url: str, directory: Path) -> tuple[str, ...]:
    return "--url", url, "--token-file", str(directory / "token")


async def test_a_running_bookie_is_shown_forced_and_suspended(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path) as (admin, url):
        assert await dlog("bookie", "gc", *at(url, tmp_path), "--force-major", "--wait", "--json") == 0
        document = json.loads(capfd.readouterr().out)
        assert [one["majorCompactionCounter"] for one in document["directories"]] == [1, 1]
        assert document["suspended"] == {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
        assert admin.garbage.state.major_compactions == 1
        assert await dlog("bookie", "gc", *at(url, tmp_path), "--suspend", "all") == 0
        assert admin.garbage.suspended() == (True, True)
        assert "isMajorGcSuspended" in capfd.readouterr().out
        assert await dlog("bookie", "gc", *at(url, tmp_path), "--resume", "minor", "--force") == 0
        assert admin.garbage.suspended() == (False, True)


async def test_a_missing_bookie_has_its_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with serving(tmp_path) as (_, url):
        pass
    assert await dlog("bookie", "gc", *at(url, tmp_path)) == 6
    assert "does not reply as a bookie" in capfd.readouterr().err


async def test_the_error_for_a_disabled_http_server_names_its_setting(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "bk_server.conf"
    config.write_text("zkServers=zk1\njournalDirectories=/j\nledgerDirectories=/l\n")
    assert await dlog("bookie", "gc", "--config", str(config)) == 2
    assert "httpServerEnabled=true" in capfd.readouterr().err
    assert await dlog("bookie", "gc") == 2


async def test_without_the_token_the_bookie_rejects_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path) as (admin, url):
        assert await dlog("bookie", "gc", "--url", url, "--suspend", "all") == 1
        assert admin.garbage.suspended() == (False, False)
    assert "401 the token is missing or wrong" in capfd.readouterr().err
