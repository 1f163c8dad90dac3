"""Getting a blob, or a range of it.

Inside: the entries that a range needs, the checks of what they give. Not inside: nodes (``uploads``).
Always: a reader returns bytes of the blob that it has opened, in order, and of no other; a whole content is
checked by its digest before its last bytes are returned.

Source: our own; docs/blobs.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from dlog.blobs.digest import ContentDigest
from dlog.blobs.errors import BlobGoneError, BlobNotFoundError, CorruptBlobError
from dlog.blobs.uploads import StoredBlob, find_blob
from dlog.context import NamespaceContext
from dlog.errors import translated
from dlog.read.entries import open_segment_ledger
from dlog.read.gaps import is_gone
from ledger.errors import LedgerReadError, NoSuchLedgerError
from ledger.handle import ReadHandle
from ledger.pickling import ProcessBound
from namespace.blob_nodes import BLOB_KEY, Blob, BlobPiece
from namespace.policy import Right

READ_BYTES = 4 * 1024 * 1024


class BlobReader(ProcessBound):
    """Reads the content of a blob, or a range of it. Made by ``Namespace.blobs.open_reader``.

    An asynchronous iterable of parts of the content, each at most some megabytes.
    """

    def __init__(self, context: NamespaceContext, blob: Blob, start: int, end: int) -> None:
        self._context, self._blob = context, blob
        self._position, self._end = start, end
        self._kept, self._kept_from = b"", 0  # that was fetched; the offset of what was not returned
        self._digest = ContentDigest() if (start, end) == (0, blob.size_bytes) else None
        self._handle: ReadHandle | None = None
        self._turn = trio.Lock()

    def __repr__(self) -> str:
        return f"<BlobReader of {self._blob.name!r}, at {self.position} of {self._blob.size_bytes} bytes>"

    @property
    def blob(self) -> Blob:
        """The blob as it was when the reader was opened."""
        return self._blob

    @property
    def position(self) -> int:
        """The offset of the next byte in the content."""
        return self._position - len(self._kept) + self._kept_from

    async def read(self, size_bytes: int = -1) -> bytes:
        """The next bytes of the range: as many as wanted, or all that are left; fewer only at its end.

        If cancelled, the bytes that were fetched are lost to this reader: open another one.

        Raises:
            BlobGoneError: The blob was replaced or deleted, and its content is not there any more.
            CorruptBlobError: The stored content is not what was put.
            LogUnavailableError
        """
        wanted = self._end - self.position if size_bytes < 0 else size_bytes
        parts: list[bytes] = []
        async with self._turn:
            while wanted > 0 and (part := await self._take(wanted)):
                parts.append(part)
                wanted -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def read_part(self) -> bytes:
        """The next bytes of the range, as many as are read at once; none at its end. Raises like ``read``."""
        async with self._turn:
            return await self._take(READ_BYTES)

    def __aiter__(self) -> BlobReader:
        return self

    async def __anext__(self) -> bytes:
        if part := await self.read_part():
            return part
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the reader. Called by the end of its block."""
        handle, self._handle = self._handle, None
        self._end = self._position = self.position
        self._kept, self._kept_from = b"", 0
        if handle is not None:
            await handle.close()

    async def _take(self, size_bytes: int) -> bytes:
        if self._kept_from == len(self._kept) and self._position < self._end:
            with translated(None, f"blob {self._blob.name!r}, reading it"):
                try:
                    self._kept = await self._fetched()
                except (NoSuchLedgerError, LedgerReadError) as exc:
                    raise await self._reason(exc) from None
            self._kept_from = 0
        start = self._kept_from
        self._kept_from = min(len(self._kept), start + size_bytes)
        return self._kept[start : self._kept_from]

    async def _reason(self, exc: NoSuchLedgerError | LedgerReadError) -> Exception:
        """Why an entry cannot be read."""
        now = await find_blob(self._context.store, self._context.path, self._blob.name)
        if now is None or now.blob.blob_id != self._blob.blob_id:
            return BlobGoneError(self._blob.name)
        if isinstance(exc, NoSuchLedgerError) or is_gone(exc):
            return CorruptBlobError(self._blob.name, f"a part of its content is lost: {exc}")
        return exc

    async def _fetched(self) -> bytes:
        """Bytes from the position on, at least one; the position is then after them."""
        begin, piece = 0, BlobPiece(-1, 0)
        for piece in self._blob.pieces:
            if self._position < begin + piece.size_bytes:
                break
            begin += piece.size_bytes
        entry_bytes = self._blob.entry_bytes
        last = (min(self._end - begin, piece.size_bytes) - 1) // entry_bytes
        first, skipped = divmod(self._position - begin, entry_bytes)
        handle = await self._opened(piece)
        payloads = await handle.read_payloads(first, last, size_bytes_max=READ_BYTES)
        for entry_id, payload in enumerate(payloads, first):
            if len(payload) != min(entry_bytes, piece.size_bytes - entry_id * entry_bytes):
                raise CorruptBlobError(
                    self._blob.name, f"entry {entry_id} of ledger {piece.ledger_id} has {len(payload)} bytes"
                )
        content = payloads[0] if len(payloads) == 1 else b"".join(payloads)
        content = content[skipped : skipped + self._end - self._position]
        await self._check_digest(content)
        self._position += len(content)
        return content

    async def _opened(self, piece: BlobPiece) -> ReadHandle:
        if self._handle is not None and self._handle.ledger_id == piece.ledger_id:
            return self._handle
        if self._handle is not None:
            await self._handle.close()
            self._handle = None
        context = self._context
        opened = await open_segment_ledger(
            context.client, piece.ledger_id, context.config.password, recover=False
        )
        metadata = opened.metadata
        if metadata.custom.get(BLOB_KEY) != self._blob.blob_id.encode():
            await opened.close()
            raise CorruptBlobError(self._blob.name, f"ledger {piece.ledger_id} was not made for it")
        last = (piece.size_bytes - 1) // self._blob.entry_bytes
        found = metadata.is_closed, metadata.last_entry_id, metadata.length_bytes
        if found != (True, last, piece.size_bytes):
            await opened.close()
            evidence = f"ledger {piece.ledger_id} is not closed at entry {last} and {piece.size_bytes} bytes"
            raise CorruptBlobError(self._blob.name, evidence)
        self._handle = opened
        return opened

    async def _check_digest(self, content: bytes) -> None:
        if self._digest is None:
            return
        await self._digest.update(content)
        if self._position + len(content) < self._end:
            return
        digest = await self._digest.hexdigest()
        if digest != self._blob.sha256:
            raise CorruptBlobError(self._blob.name, f"its content has the SHA-256 {digest}")


@asynccontextmanager
async def open_blob_reader(
    context: NamespaceContext, name: str, start: int, end: int | None
) -> AsyncIterator[BlobReader]:
    """The reader of a blob, for the duration of the block; see ``Namespace.blobs.open_reader``."""

    async def find() -> StoredBlob | None:
        with translated(None, f"blob {name!r}, looking for it"):
            return await find_blob(context.store, context.path, name)

    found = await context.while_store_is_away(Right.READ, find)
    if found is None:
        raise BlobNotFoundError(name)
    size_bytes = found.blob.size_bytes
    stop = size_bytes if end is None else min(end, size_bytes)
    reader = BlobReader(context, found.blob, min(start, stop), stop)
    try:
        yield reader
    finally:
        await reader.aclose()
