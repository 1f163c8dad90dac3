"""A TCP proxy before a server of this machine that stops passing bytes and closes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class SilenceableProxy:
    """A TCP proxy before the server. Silenced, it passes nothing and closes nothing."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._passing = trio.Event()
        self._passing.set()
        self.hosts = ""

    def silence(self) -> None:
        self._passing = trio.Event()

    def heal(self) -> None:
        self._passing.set()

    async def serve(self, client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", self._server_port)
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass, client, server, nursery.cancel_scope)
            nursery.start_soon(self._pass, server, client, nursery.cancel_scope)

    async def _pass(
        self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        try:
            async for chunk in source:
                await self._passing.wait()
                await sink.send_all(chunk)
        except trio.BrokenResourceError:
            pass
        scope.cancel()


@asynccontextmanager
async def proxy_to(port: int) -> AsyncIterator[SilenceableProxy]:
    proxy = SilenceableProxy(port)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy.hosts = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, proxy.serve, [listener])
        yield proxy
        proxy.heal()
        nursery.cancel_scope.cancel()
