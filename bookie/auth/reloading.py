"""Certificates and secrets that change while the bookie runs.

Inside: loading them at the start, and again on request or after a time.
Not inside: the content of the files (``tls``, ``sasl``, ``tokens``).
Always: connections that are open keep what they have; a file that cannot be used changes nothing, and is
reported once until the files change again.

Source: TLSContextFactory.java, FileModifiedTimeReloader.java; docs/protocol.md 12.6.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Protocol

import trio

from bookie.auth.tls import TlsConfig, server_context
from bookie.errors import BookieConfigError
from ledger.auth.authentication import AuthProvider
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.failure_domain import failure_domain

log = get_logger(__name__)


class ReloadedFiles(Protocol):
    """Other files that are read at the same times."""

    def read(self) -> Callable[[], None]:
        """Read them all; return the function that makes them count. Blocks; runs in a thread.

        Raises:
            BookieConfigError: One cannot be used.
        """


class Secrets:
    """The TLS context and the authentication plug-in of a bookie, kept up to date."""

    def __init__(self, tls: TlsConfig | None, provider: AuthProvider | None) -> None:
        self._tls, self._provider = tls, provider
        self._others: list[ReloadedFiles] = []
        self._context: ssl.SSLContext | None = None
        self._last_error: str | None = None

    def __repr__(self) -> str:
        return f"<Secrets with{'out' if self._context is None else ''} TLS>"

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection. Only with TLS."""
        assert self._context is not None  # callers ask only if ``tls`` is configured; then ``load`` sets it
        return self._context

    async def include(self, files: ReloadedFiles) -> None:
        """Read these files now, and again with all others.

        Raises:
            BookieConfigError: One cannot be used.
        """
        apply = await trio.to_thread.run_sync(files.read)
        apply()
        self._others.append(files)

    async def load(self) -> None:
        """Read all files. New connections use them at once.

        Raises:
            BookieConfigError: One cannot be used; then nothing changes.
        """
        context = None if self._tls is None else await trio.to_thread.run_sync(server_context, self._tls)
        changes = [await trio.to_thread.run_sync(other.read) for other in self._others]
        if self._provider is not None:
            try:
                await trio.to_thread.run_sync(self._provider.reload)
            except (OSError, ValueError) as exc:
                raise BookieConfigError(
                    f"the secrets of plug-in {self._provider.plugin!r} cannot be used: {exc}"
                ) from exc
        self._context = context
        for apply in changes:
            apply()

    async def reload(self) -> None:
        """Read all files again. If one cannot be used, log that once, and keep the old ones."""
        with failure_domain("reading secrets again"):
            try:
                await self.load()
            except BookieConfigError as exc:
                if str(exc) != self._last_error:
                    log.error("certificates and secrets stay as they are; the new ones fail: %s", exc)
                self._last_error = str(exc)
            else:
                self._last_error = None

    async def keep(self, interval_s: float) -> None:
        """Read all files again after each interval, until cancelled."""
        while True:
            await trio.sleep(interval_s)
            await self.reload()


async def open_secrets(tls: TlsConfig | None, provider: AuthProvider | None) -> Secrets:
    """Read all files for the first time.

    Raises:
        BookieConfigError: One cannot be used.
    """
    secrets = Secrets(tls, provider)
    await secrets.load()
    return secrets
