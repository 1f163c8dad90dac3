"""Commands beside bookies that require TLS and authentication."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import dlog
from ledger.transport.bookie_security import NO_SECURITY, load_bookie_security
from tests.fakes.secured_bookies import MECHANISMS, prepare, secured_bookies

TIMEOUT_S = 240.0


async def dlog_command(*arguments: str, lines: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DLOG_")}
    return await trio.run_process(
        [sys.executable, "-m", "dlog.cli.main", *arguments],
        stdin=lines,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.zookeeper
@pytest.mark.cluster
@pytest.mark.parametrize("name", MECHANISMS)
async def test_a_log_is_written_and_read_with_the_file_and_not_without(name: str, tmp_path: Path) -> None:
    settings = prepare(tmp_path, MECHANISMS[name])
    secured = ("--bookie-security", str(settings))
    with trio.fail_after(TIMEOUT_S):
        async with secured_bookies(tmp_path, MECHANISMS[name]) as hosts:
            uri = ("--uri", f"distributedlog://{hosts}/shop")
            config = dlog.NamespaceConfig(create=True, bookie_security=NO_SECURITY)
            async with dlog.open_namespace(uri[1], config=config):
                pass  # binds the namespace; no bookie is asked
            written = await dlog_command(*secured, "write", "--create", "orders", *uri, lines=b"a\nb\n")
            assert written.returncode == 0, written.stderr
            read = await dlog_command(*secured, "read", "orders", *uri)
            assert (read.returncode, read.stdout) == (0, b"a\nb\n"), read.stderr
            # The same settings as a section of the client's configuration.
            file = tmp_path / "dlog.toml"
            file.write_text(f"uri = '{uri[1]}'\n[bookies]\n{settings.read_text()}")
            read = await dlog_command("--config", str(file), "read", "orders")
            assert (read.returncode, read.stdout) == (0, b"a\nb\n"), read.stderr
            info = await dlog_command("--config", str(file), "bookies", "info")
            assert info.returncode == 0, info.stderr
            service = ("--service", f"zk://{hosts}/ledgers")
            info = await dlog_command(*secured, "bookies", "info", *service)
            assert info.returncode == 0, info.stderr
            config = dlog.NamespaceConfig(bookie_security=load_bookie_security(settings))
            async with (
                dlog.open_namespace(uri[1], config=config) as namespace,
                namespace.open_reader("orders", follow=False) as reader,
            ):
                assert [record.payload async for record in reader] == [b"a", b"b"]
            for arguments in (
                ("write", "--create", "others", *uri),
                ("read", "orders", *uri),
                ("bookies", "info", *service),
            ):
                refused = await dlog_command(*arguments, lines=b"c\n")
                assert refused.returncode != 0
                assert b"c" not in refused.stdout.split()
                assert b"dlog --bookie-security FILE" in refused.stderr, refused.stderr
