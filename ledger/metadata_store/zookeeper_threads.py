"""The threads of a ZooKeeper client: their connections, also with TLS, and their log.

Inside: opening a connection, waiting for bytes. Not inside: requests and sessions (``zookeeper``).
Always: no connection is opened once the session is over; a server that accepts a connection and does not
reply, as one that boots, is given up long before the session would expire; with TLS, no reply waits in
OpenSSL's buffer for the next one; no log line has a credential.

Source: kazoo 2.11, handlers/threading.py, handlers/utils.py, protocol/connection.py; ZooKeeper,
ClientCnxn.java (connectTimeout).
"""

from __future__ import annotations

import logging
import math
import select
import socket
import ssl
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import SASL, Auth

from ledger.metadata_store.errors import StoreSecurityError
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from ledger.runtime.log_lines import get_logger


def _has_no_credential(record: logging.LogRecord) -> bool:
    arguments = record.args if isinstance(record.args, tuple) else ()
    return not any(isinstance(argument, (Auth, SASL)) for argument in arguments)


# kazoo logs several warnings for each attempt to connect. The store logs each change of its state once, so
# kazoo is quiet unless a program sets the level of this logger. At the level DEBUG it logs each request, also
# those that carry a password.
kazoo_log = get_logger("ledger.metadata_store.zookeeper.kazoo")
_of_program = logging.getLogger(kazoo_log.name)
_of_program.addHandler(logging.NullHandler())
_of_program.setLevel(logging.CRITICAL + 1)
_of_program.addFilter(_has_no_credential)


# The limit of the first attempt to connect to a server. It doubles with each that fails there, for a server
# that is slow. Each server has its own limit: members that elect a leader refuse many attempts quickly, and
# these must not let a server whose packets are lost use up the time of the client.
CONNECT_ATTEMPT_S = 2.0


_Ready = tuple[list[Any], list[Any], list[Any]]


def _ready(readers: Sequence[Any], writers: Sequence[Any], timeout_s: float) -> _Ready:
    """Wait until one of the sockets is ready or has failed.

    kazoo waits five times for each request, and makes and closes an epoll descriptor for each wait. That is a
    third of the processor time of a request.
    """
    poll = select.poll()
    for each in readers:
        poll.register(each, select.POLLIN | select.POLLPRI)
    for each in writers:
        poll.register(each, select.POLLOUT)
    found = {descriptor for descriptor, _ in poll.poll(max(0, math.ceil(timeout_s * 1000)))}
    return (
        [each for each in readers if each.fileno() in found],
        [each for each in writers if each.fileno() in found],
        [],
    )


class OneSessionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads. They open no connection once the session is over."""

    def __init__(self, security: ZooKeeperSecurity, server_count: int = 1) -> None:
        super().__init__()
        self._security = security
        self._server_count = server_count
        # By address: attempts to connect, since a connection served requests.
        self._attempts: Counter[tuple[str, int]] = Counter()
        self._connect_by_s: float | None = None  # the end of the present attempt; None: it has succeeded
        self.over = False
        self.last_failure: Exception | None = None

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Connect. kazoo's own TLS also trusts the system's authorities when others are given."""
        if self.over:
            raise ConnectionRefusedError("the session is over, and this store opens no other")
        # kazoo would wait for the session timeout, for the connection and again for the server's first reply.
        # Each server gets its share of the session timeout at most, as in Java's client, so that all are
        # tried before the session expires.
        address = kwargs["address"]
        limit_s = CONNECT_ATTEMPT_S * 2 ** min(self._attempts[address], 16)
        limit_s = min(limit_s, kwargs["timeout"] / self._server_count)
        self._attempts[address] += 1
        self._connect_by_s = time.monotonic() + limit_s
        kwargs["timeout"] = limit_s
        try:
            if self._security.tls:
                return self._connect_tls(kwargs["address"], kwargs["hostname"], kwargs["timeout"])
            return super().create_connection(*args, **kwargs)
        except StoreSecurityError as exc:
            self.last_failure = exc
            # kazoo tries again after an OSError, and a rotation of the files may be half done.
            raise ConnectionRefusedError(str(exc)) from None
        except Exception as exc:
            self.last_failure = exc
            raise

    def select(self, readers: Sequence[Any], writers: Sequence[Any], _: Any, timeout_s: float) -> _Ready:
        """Wait for sockets. A reply that OpenSSL has read with the one before it is ready too."""
        if len(readers) > 1:  # kazoo waits for replies and for requests: the connection serves
            self._attempts.clear()
            self._connect_by_s = None
        elif self._connect_by_s is not None:
            left_s = max(0.0, self._connect_by_s - time.monotonic())
            timeout_s = min(timeout_s, left_s)
        for each in readers:
            if isinstance(each, ssl.SSLSocket) and each.pending() > 0:
                readable, writable, failed = _ready(readers, writers, 0)
                return [each, *(other for other in readable if other is not each)], writable, failed
        return _ready(readers, writers, timeout_s)

    def _connect_tls(self, address: tuple[str, int], hostname: str, timeout_s: float) -> ssl.SSLSocket:
        context = self._security.tls_context()  # from the files as they are now
        plain = socket.create_connection(address, timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=hostname)
        except BaseException:
            plain.close()
            raise
