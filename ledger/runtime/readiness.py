"""Tells the program that started this one that it serves now, or that it is about to stop.

systemd (``Type=notify``) and `dlog daemon start` pass the address of a socket in ``NOTIFY_SOCKET`` and wait
for the message. Without the variable nothing happens.

Source: sd_notify(3).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"
STOPPING = "STOPPING=1"


def notify(message: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Send a message; False if nobody waits for one. It never blocks, and an error is no reason to stop."""
    address = environment.get(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]  # Linux's abstract addresses
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(message.encode(), address)
    except OSError:
        return False
    return True
