"""Running a command on a host: by ssh, after a prefix such as ``ip netns exec m1``, or on this machine.

Inside: the command line on this machine, its time limit. Not inside: which commands (``programs``).
Always: the words of a command reach the program on the host as they are; ssh's shell changes none of them.
Nothing asks a question on a terminal.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

import attrs
import trio

from dlog.cluster.files import last_message
from dlog.cluster.hosts.hosts_file import Host
from dlog.cluster.hosts.programs import Command

SSH_FAILED = 255  # the exit code of ssh if it has no connection
CONNECT_TIMEOUT_S = 10


@attrs.frozen
class CommandOutcome:
    """The end of a command on a host."""

    exit_code: int | None  # None: it did not run, or did not end in time
    output: str = ""
    error: str = ""
    is_unreachable: bool = False

    @property
    def reason(self) -> str:
        """The reason that it gave for its failure."""
        found = last_message(self.error) or last_message(self.output)
        return found or f"exit code {self.exit_code}, and no message"


def command_line(host: Host, words: Sequence[str]) -> list[str]:
    """The command on this machine that runs ``words`` on the host."""
    if host.ssh is None:
        return [*host.run, *words]
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_TIMEOUT_S}", *host.ssh_options]
    return ["ssh", *options, host.ssh, "--", shlex.join(words)]


async def run_there(host: Host, command: Command, *, timeout_s: float) -> CommandOutcome:
    """Run a command on a host; return when it has ended or the time is over.

    If cancelled, or if the time is over, the command may continue on a host that ssh reaches.
    """
    line = command_line(host, command.words)
    with trio.move_on_after(timeout_s):
        try:
            done = await trio.run_process(
                line,
                stdin=command.stdin.encode(),
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )
        except OSError as exc:
            return CommandOutcome(
                None, error=f"{line[0]} cannot be run here: {exc.strerror}", is_unreachable=True
            )
        return _outcome(host, done)
    return CommandOutcome(None, error=f"no end within {timeout_s:g} s", is_unreachable=True)


def _outcome(host: Host, done: subprocess.CompletedProcess[bytes]) -> CommandOutcome:
    output, error = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return CommandOutcome(
        done.returncode, output, error, host.ssh is not None and done.returncode == SSH_FAILED
    )
