"""Commands reach a host as they are: behind a prefix, and through the shell at ssh's other end."""

# covers: dlog/cluster/hosts/channel.py

from __future__ import annotations

from pathlib import Path

import pytest

from dlog.cluster.hosts.channel import run_there
from dlog.cluster.hosts.hosts_file import Host
from dlog.cluster.hosts.programs import Command

WORDS = ("printf", "%s|", "a b", "$HOME", "it's", "x;y", "*", "")
# As sshd does, it gives the words, joined by blanks, to a shell.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do echo "$1" >> "$0.log"; shift; done
shift
[ "$*" = "false" ] && { echo "ssh: no route to host" >&2; exit 255; }
exec sh -c "$*"
"""


def host(**keys: object) -> Host:
    return Host(name="m1", address="10.0.0.1", **keys)  # type: ignore[arg-type]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    return program


@pytest.mark.parametrize("keys", [{"ssh": "dlog@m1", "ssh_options": ("-v",)}, {"run": ("env", "A=1")}, {}])
async def test_the_words_of_a_command_arrive_as_they_are(ssh: Path, keys: dict[str, object]) -> None:
    done = await run_there(host(**keys), Command(WORDS), timeout_s=60)
    assert (done.exit_code, done.output) == (0, "".join(f"{word}|" for word in WORDS[2:]))
    done = await run_there(host(**keys), Command(("cat",), "a text\n"), timeout_s=60)
    assert done.output == "a text\n"
    if "ssh" in keys:
        given = ssh.with_name("ssh.log").read_text().splitlines()
        assert given[:2] == ["-o", "BatchMode=yes"], "ssh must not ask"
        assert given[4:6] == ["-v", "dlog@m1"]


async def test_a_host_out_of_reach_is_told_from_a_command_that_fails(ssh: Path) -> None:
    lost = await run_there(host(ssh="dlog@m1"), Command(("false",)), timeout_s=60)
    assert (lost.is_unreachable, lost.reason) == (True, "ssh: no route to host")
    failed = await run_there(host(), Command(("sh", "-c", "echo dlog: no disk >&2; exit 5")), timeout_s=60)
    assert (failed.is_unreachable, failed.exit_code, failed.reason) == (False, 5, "no disk")
    missing = await run_there(host(run=("no-such-program",)), Command(("true",)), timeout_s=60)
    assert (missing.is_unreachable, missing.exit_code) == (True, None)
    assert missing.reason == "no-such-program cannot be run here: No such file or directory"


async def test_a_command_without_an_end_is_given_up() -> None:
    given_up = await run_there(host(), Command(("sleep", "600")), timeout_s=0.01)
    assert (given_up.is_unreachable, given_up.reason) == (True, "no end within 0.01 s")
