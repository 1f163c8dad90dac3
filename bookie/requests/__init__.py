"""What a bookie does with each request: rights, fences, long polls, replies.

Inside: a connection's session, work whose reply comes later, its budgets, ledgers that the metadata does not
know. Not inside: connections and their memory (``bookie.server``), storing entries (``bookie.storage``).
Entry points: ``BookieService`` and its ``ClientSession``.
"""

from bookie.requests.session import BookieService, ClientSession

__all__ = ["BookieService", "ClientSession"]
