"""The port of a bookie: connections, TLS and authentication, memory.

Inside: accepting and closing connections, the gate before them, receiving and sending within memory limits.
Not inside: the meaning of a request (``bookie.requests``). Entry point: ``Server``.
"""

from bookie.server.config import ServerConfig
from bookie.server.server import Server

__all__ = ["Server", "ServerConfig"]
