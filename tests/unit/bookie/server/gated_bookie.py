"""Peers of a bookie whose connections have a gate: clear text, TLS, certificates, a plug-in of words."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import attrs
import trio
from trio.testing import memory_stream_pair

from bookie.bookie import Bookie
from bookie.requests.deferred import DeferredRequest
from bookie.requests.session import BookieService, ClientSession
from bookie.server.config import ServerConfig
from bookie.server.server import Server
from ledger.auth.authentication import AuthRefusedError, AuthStep, PeerCertificate, PeerIdentity
from ledger.codes import Code
from ledger.digest import DigestType, EntryCodec, master_key
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import AddRequest, ReadRequest, Reply, Request, StartTlsReply, StartTlsRequest
from tests.fakes.certificates import TestAuthority

KEY = master_key(b"")  # of the default password, which every stranger knows
ENTRY = EntryCodec(DigestType.CRC32C, b"").pack(7, 0, -1, 5, b"bytes")
ADD = AddRequest(7, 0, KEY, ENTRY)
FENCE = ReadRequest(7, 0, fence=True, master_key=KEY)
SECRET = b"open sesame"


class Words:
    """A plug-in: a peer that sends ``SECRET`` is ``alice``, and every other token is answered by ``?``."""

    plugin, needs_tls = "words", False

    def open(self) -> Words:
        return self

    def reload(self) -> None:
        pass

    def on_tls(self, certificate: PeerCertificate | None) -> None:
        pass

    def answer(self, token: bytes) -> AuthStep:
        if token == b"wrong":
            raise AuthRefusedError("not the word")
        if token == SECRET:
            return AuthStep(b"welcome", PeerIdentity("alice", "words"))
        return AuthStep(b"?")


class Peer:
    """A client that knows only frames."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._frames = FrameBuffer()
        self._replies: list[Reply] = []

    async def ask(self, *requests: Request, version: int = 3) -> Reply | None:
        """The next reply; None if the bookie closed the connection."""
        codec = v2 if version == 2 else v3
        try:
            await self.stream.send_all(b"".join(map(codec.encode_request, requests)))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # what it replied may still be read
        return await self.reply()

    async def reply(self) -> Reply | None:
        while not self._replies:
            try:
                chunk = await self.stream.receive_some(1 << 20)
            except trio.BrokenResourceError:
                return None
            if not chunk:
                return None
            data, spans = self._frames.feed(bytes(chunk))
            for start, end in spans:
                codec = v2 if data[start] <= 2 else v3
                self._replies.append(codec.decode_reply(data, start, end).reply)
        return self._replies.pop(0)

    async def secured(self, context: ssl.SSLContext) -> Peer:
        reply = await self.ask(StartTlsRequest())
        assert reply == StartTlsReply(Code.OK)
        stream = trio.SSLStream(self.stream, context, server_hostname="bookie.test", https_compatible=True)
        await stream.do_handshake()
        return Peer(stream)


@attrs.frozen
class Certificates:
    """One authority, a bookie's context that demands certificates, and contexts of clients."""

    home: Path
    authority: TestAuthority
    bookie: ssl.SSLContext

    def client(self, name: str | None = "client.test", *, units: tuple[str, ...] = ()) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.home / "authority.pem"))
        if name is not None:
            signed = self.authority.sign(name, units=units)
            context.load_cert_chain(signed.write_pem(self.home / "client.pem"))
        return context


class RecordingService(BookieService):
    """Keeps the session of each connection."""

    sessions: list[ClientSession]

    def open_session(
        self, send: Callable[[bytes], None], defer: Callable[[DeferredRequest], None]
    ) -> ClientSession:
        session = super().open_session(send, defer)
        self.sessions.append(session)
        return session


class Opened:
    """A bookie whose connections each test configures."""

    def __init__(self, bookie: Bookie, nursery: trio.Nursery) -> None:
        self.bookie, self._nursery = bookie, nursery
        self.service = RecordingService(bookie.storage)
        self.sessions = self.service.sessions = []

    def connect(self, config: ServerConfig) -> Peer:
        server = self.server = Server(self.service, config)
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(server.serve_stream, theirs)
        return Peer(ours)
