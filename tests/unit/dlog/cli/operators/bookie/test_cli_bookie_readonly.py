"""`dlog bookie readonly` and a running bookie with an HTTP server."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import trio

from dlog.cli.main import main
from tests.unit.bookie.http.test_admin import serving

pytestmark = pytest.mark.slow


async def readonly(url: str, directory: Path, *arguments: str) -> int:
    command = ["bookie", "readonly", *arguments, "--url", url, "--token-file", str(directory / "token")]
    return await trio.to_thread.run_sync(partial(main, command))


async def test_a_running_bookie_is_made_read_only_and_writable_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path) as (admin, url):
        for wanted, state in (("on", True), ("status", True), ("off", False), ("status", False)):
            assert await readonly(url, tmp_path, wanted, "--json") == 0
            assert json.loads(capfd.readouterr().out) == {"read_only": state}
            assert admin.service.rights.writable == (not state)
        assert await readonly(url, tmp_path, "status") == 0
        assert capfd.readouterr().out == "writable\n"


async def test_a_rejected_request_and_a_missing_bookie_have_their_exit_codes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path) as (admin, url):
        (tmp_path / "token").write_text("another\n")
        assert await readonly(url, tmp_path, "on") == 1
        assert "rejects the request: 401" in capfd.readouterr().err
        assert admin.service.rights.writable
    assert await readonly(url, tmp_path, "on") == 6
    assert "does not reply as a bookie" in capfd.readouterr().err
