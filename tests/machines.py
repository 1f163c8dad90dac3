"""Machines of a private network on this machine: network namespaces, each with one cable to one switch.

Inside: making and removing them, pulling a cable and putting it back. Not inside: what runs there.
Always: the switch is in a namespace of its own, so the network of this machine is not touched. Only processes
of these namespaces are killed, and only namespaces of these names are deleted.

Source: ip-netns(8), ip-link(8), veth(4).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
NETWORK = "192.168.210"  # private: no packet leaves the switch
NEEDS = (
    "this test makes network namespaces: it needs `ip` (apt-get install iproute2), and root or the"
    " capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN"
)


class Machine:
    """One machine with one address."""

    def __init__(self, namespace: str, number: int) -> None:
        self.namespace, self.number = namespace, number
        self.address = f"{NETWORK}.{number}"

    @property
    def run(self) -> list[str]:
        """The words in front of a command that is to run there."""
        return [ip_program(), "netns", "exec", self.namespace]

    @property
    def has_link(self) -> bool:
        """True if its cable is in."""
        return "NO-CARRIER" not in ip("-n", self.namespace, "link", "show", "eth0")


class Machines:
    """Machines at one switch."""

    def __init__(self, count: int) -> None:
        self.switch = f"dlog-{os.getpid()}-switch"
        self.all = [Machine(f"dlog-{os.getpid()}-m{number}", number) for number in range(1, count + 1)]

    def cut(self, machine: Machine) -> None:
        """Pull its cable: packets to it and from it are lost, and no connection is reset."""
        ip("-n", self.switch, "link", "set", f"port{machine.number}", "down")

    def mend(self, machine: Machine) -> None:
        """Put its cable back."""
        ip("-n", self.switch, "link", "set", f"port{machine.number}", "up")


def ip_program() -> str:
    """The program ``ip``."""
    found = shutil.which("ip", path=PATH)
    assert found is not None, NEEDS
    return found


def ip(*words: str) -> str:
    """Run ``ip``; return its output. An error says what is missing."""
    done = subprocess.run([ip_program(), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()} ({NEEDS})"
    return done.stdout


@contextlib.contextmanager
def open_machines(count: int) -> Iterator[Machines]:
    """Machines that reach each other. At the end their processes are killed and they are deleted."""
    machines = Machines(count)
    made: list[str] = []
    try:
        for namespace in (machines.switch, *(machine.namespace for machine in machines.all)):
            ip("netns", "add", namespace)
            made.append(namespace)
        switch = machines.switch
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for machine in machines.all:
            port, at = f"port{machine.number}", machine.namespace
            ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", at)
            ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", at, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            ip("-n", at, "link", "set", "eth0", "up")
            ip("-n", at, "link", "set", "lo", "up")
        yield machines
    finally:
        for namespace in made:
            for pid in ip("netns", "pids", namespace).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            ip("netns", "delete", namespace)


if __name__ == "__main__":  # for .ci/test: fails if this machine cannot do it
    with open_machines(1):
        pass
