"""``python -m tests.fakes.attacker PORT COUNT``: a stranger that holds many connections to a bookie.

Every second connection is idle, the others send half a frame. When all are made, it replaces the oldest ones
without end. The process may open as many files as it needs, whatever the limit of its parent. It prints
``full`` after COUNT connections, and ``again`` after each further 200. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import struct
import sys
from collections import deque

HALF_FRAME = (1000).to_bytes(4, "big") + bytes(100)
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing leaves no port waiting
_ADDRESS = "127.0.0.9"
_ROUND = 200


def raise_limit(files: int) -> None:
    """Let this process open so many files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard == resource.RLIM_INFINITY or hard >= files, (
        f"this test opens {files} files, and the hard limit is {hard}: raise it (ulimit -Hn)"
    )
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def connect(port: int, number: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    one.bind((_ADDRESS, 0))
    one.connect(("127.0.0.1", port))
    if number % 2:
        with contextlib.suppress(OSError):
            one.sendall(HALF_FRAME)
    return one


def main() -> None:
    port, count = map(int, sys.argv[1:])
    raise_limit(count + 64)
    held = deque(connect(port, number) for number in range(count))
    print("full", flush=True)
    made = 0
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN | select.POLLHUP)
    while not poll.poll(1):
        for _ in range(10):
            held.popleft().close()
            held.append(connect(port, made))
            made += 1
            if not made % _ROUND:
                print("again", flush=True)


if __name__ == "__main__":
    main()
