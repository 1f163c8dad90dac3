"""The network side of a bookie: connections, sessions, rights, fences, replies.

Inside: TCP and TLS, the protocol's requests, memory limits, long polls.
Not inside: storing entries (``bookie.storage``). Entry points: ``Server`` and ``BookieService``.
"""

from bookie.server.config import ServerConfig
from bookie.server.server import Server
from bookie.server.service import BookieService

__all__ = ["BookieService", "Server", "ServerConfig"]
