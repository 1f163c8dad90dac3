"""One peer of a bookie over real storage, without a socket; deferred work is done at once."""

from __future__ import annotations

from collections import deque

import trio

from bookie.digest_checker import DigestTypeOf
from bookie.requests.deferred import DeferredRequest
from bookie.requests.reads import DeferredReplies
from bookie.requests.session import BookieService, ClientSession
from bookie.server.reply_queue import ReplyQueue
from bookie.server.shared_memory import SharedMemory
from bookie.storage.storage import Storage
from ledger.wire import v2, v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import Reply, Request


class Connection:
    """See the module."""

    def __init__(
        self,
        storage: Storage,
        digest_type_of: DigestTypeOf | None = None,
        service: BookieService | None = None,
    ) -> None:
        self.deferred: deque[DeferredRequest] = deque()
        self._out = bytearray()
        self.storage = storage
        self.service = service or BookieService(storage, digest_type_of=digest_type_of)
        self._session: ClientSession = self.service.open_session(self._out.extend, self.deferred.append)

    async def ask(self, *requests: Request, version: int = 3) -> list[Reply]:
        """Send the requests in one chunk; return the replies when all are there."""
        self.send(*requests, version=version)
        return await self.replies(version=version)

    def send(self, *requests: Request, version: int = 3) -> None:
        """Handle the requests, without the deferred work."""
        codec = v2 if version == 2 else v3
        frames = b"".join(codec.encode_request(request) for request in requests)
        data, spans = FrameBuffer().feed(frames)
        rest = self._session.handle(data, spans)
        while rest:
            rest = self._session.handle(data, rest)

    async def replies(self, *, version: int = 3) -> list[Reply]:
        """Do the deferred work, and return all replies."""
        await self._sync()
        queue = ReplyQueue(1 << 20, SharedMemory(1 << 20, 1 << 16))
        work = DeferredReplies(self.service, self._session, queue, lambda: 5, 1 << 20)
        while self.deferred:
            await work.reply_to(self.deferred.popleft())
        await self._sync()
        data, spans = FrameBuffer().feed(bytes(self._out))
        self._out.clear()
        codec = v2 if version == 2 else v3
        return [codec.decode_reply(data, *span).reply for span in spans]

    async def _sync(self) -> None:
        durable = trio.Event()
        self.storage.submit(self.storage.new_batch(), lambda _: durable.set())
        await durable.wait()
