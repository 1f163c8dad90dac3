"""Tokens and certificates of the HTTP port: their files, new ones without a restart, and the audit log."""

# covers: bookie/http/secrets.py

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from bookie.auth.reloading import Secrets
from bookie.config.admin_config import AdminConfig, AdminTls
from bookie.errors import BookieConfigError
from bookie.http import guard as admin_guard
from bookie.http import serve_admin
from bookie.http.secrets import Token, read_tokens
from dlog.cli.operators.bookie.command import gc as gc_command
from ledger.runtime.audit import FILE_VARIABLE
from tests.fakes.certificates import make_authority
from tests.unit.bookie.http.test_admin import AUTHORIZED, HOST, TOKEN, send_request, serving
from tests.unit.bookie.http.test_admin_tls import status

GC = "/api/v1/bookie/gc"
OLD, NEW = b"0123456789abcdef-old", b"0123456789abcdef-new"


def with_token(token: bytes) -> str:
    return f"{HOST}Authorization: Bearer {token.decode()}\r\n"


def write_token(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def audit_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "audit.log"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    return path


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


# The file


def test_a_token_file_that_others_may_read_or_that_is_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(BookieConfigError, match="cannot be read"):
        read_tokens(path)
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o640)
    with pytest.raises(BookieConfigError, match=r"mode 640.*chmod 600"):
        read_tokens(path)
    path.chmod(0o600)
    assert read_tokens(path) == (Token(hashlib.sha256(TOKEN).digest()),)
    path.write_bytes(b"short")
    with pytest.raises(BookieConfigError, match="at least 16"):
        read_tokens(path)


def test_a_file_may_name_the_owners_of_several_tokens(tmp_path: Path) -> None:
    hashed = hashlib.sha256(NEW).hexdigest()
    path = write_token(
        tmp_path / "tokens", b"# operators\nalice %s\nbob sha256:%s\n" % (OLD, hashed.encode())
    )
    assert read_tokens(path) == (
        Token(hashlib.sha256(OLD).digest(), "alice"),
        Token(hashlib.sha256(NEW).digest(), "bob"),
    )
    for bad in (b"alice short-one\n", b"alice %s more\n" % OLD, b"alice %s\nbob %s\n" % (OLD, OLD)):
        write_token(path, bad)
        with pytest.raises(BookieConfigError, match="a name and a token in each line") as caught:
            read_tokens(path)
        assert OLD.decode() not in str(caught.value)


# New files


async def test_a_new_token_counts_after_a_reload_and_a_bad_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_token(tmp_path / "mine", OLD)
    secrets = Secrets(None, None)
    async with serving(tmp_path) as (admin, _), trio.open_nursery() as nursery:
        url = await nursery.start(serve_admin, admin, AdminConfig(port=0, token_path=path), secrets)

        async def statuses() -> list[int]:
            return [(await send_request(url, "GET", GC, headers=with_token(one)))[0] for one in (OLD, NEW)]

        assert await statuses() == [200, 401]
        path.write_bytes(b"short")
        await secrets.reload()
        assert "stay as they are" in caplog.text
        assert await statuses() == [200, 401]
        path.write_bytes(NEW)
        await secrets.reload()
        assert await statuses() == [401, 200]
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_new_certificates_and_authorities_count_after_a_reload(tmp_path: Path) -> None:
    old, new = make_authority("old.test"), make_authority("new.test")
    key, trust = tmp_path / "key.pem", tmp_path / "trust.pem"
    old.sign("localhost").write_pem(key)
    old.write_pem(trust)
    secrets = Secrets(None, None)
    async with serving(tmp_path) as (admin, _), trio.open_nursery() as nursery:
        config = AdminConfig(port=0, tls=AdminTls(key_store=key, trust_store=trust))
        url = await nursery.start(serve_admin, admin, config, secrets)
        host, _, port = url.removeprefix("https://").rpartition(":")
        address = host, int(port)
        assert await status(address, old, tmp_path, old.sign("operator"), HOST) == 200
        key.write_bytes(b"half written")
        await secrets.reload()
        assert await status(address, old, tmp_path, old.sign("operator"), HOST) == 200

        new.sign("localhost").write_pem(key)
        new.write_pem(trust)
        await secrets.reload()
        with trio.fail_after(60):
            while True:  # until the earlier server has stopped
                try:
                    found = await status(address, new, tmp_path, old.sign("operator"), HOST)
                except OSError:
                    continue
                if found is None:
                    break
        assert await status(address, new, tmp_path, new.sign("operator"), HOST) == 200
        nursery.cancel_scope.cancel()


# The audit log


async def test_an_act_names_the_owner_of_its_token(tmp_path: Path, audit_file: Path) -> None:
    path = write_token(tmp_path / "tokens", b"alice %s\nbob %s\n" % (OLD, NEW))
    async with serving(tmp_path) as (admin, plain), trio.open_nursery() as nursery:
        url = await nursery.start(serve_admin, admin, AdminConfig(port=0, token_path=path))
        for token in (OLD, NEW):
            assert (await send_request(url, "PUT", GC, headers=with_token(token)))[0] == 200
        assert (await send_request(plain, "PUT", GC, headers=AUTHORIZED))[0] == 200
        nursery.cancel_scope.cancel()
    assert [(line["identity"], line["result"]) for line in lines_of(audit_file)] == [
        ("HTTP 127.0.0.1 as alice", "done"),
        ("HTTP 127.0.0.1 as bob", "done"),
        ("HTTP 127.0.0.1", "done"),
    ]


async def test_refused_requests_are_recorded_and_masses_of_them_write_few_lines(
    tmp_path: Path, audit_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_guard, "REFUSALS_AT_ONCE", 3)
    monkeypatch.setattr(admin_guard, "REFUSALS_PER_S", 1e-9)
    async with serving(tmp_path) as (_, url):
        for number in range(20):
            headers = with_token(b"guess-%016d" % number)
            assert (await send_request(url, "PUT", GC, headers=headers))[0] == 401
        assert (await send_request(url, "GET", "/heartbeat", headers=HOST))[0] == 200
    lines = lines_of(audit_file)
    assert len(lines) == 4  # the burst, and the last grant
    for line in lines:
        assert (line["act"], line["target"], line["identity"]) == (
            "HTTP request",
            f"PUT {GC}",
            "HTTP 127.0.0.1",
        )
        assert line["result"].startswith("refused: 401 the token is missing or wrong")
    assert "guess-" not in json.dumps(lines)


async def test_a_refused_request_stays_refused_if_it_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "nowhere" / "audit.log"))
    async with serving(tmp_path) as (_, url):
        with caplog.at_level(logging.CRITICAL):
            assert (await send_request(url, "PUT", GC, headers=HOST))[0] == 401
    assert "did not take the line" in caplog.text


def test_the_command_refuses_a_file_with_the_tokens_of_several_owners(tmp_path: Path) -> None:
    path = write_token(tmp_path / "tokens", b"alice %s\nbob %s\n" % (OLD, NEW))
    result = CliRunner().invoke(gc_command, ["--url", "http://127.0.0.1:1", "--token-file", str(path)])
    assert result.exit_code != 0
    assert "several owners" in result.output
    assert OLD.decode() not in result.output
