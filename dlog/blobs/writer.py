"""Putting a blob: its content becomes entries of ledgers, and then the blob is made of them.

Inside: cutting the content into entries and pieces, the digest, the end. Not inside: nodes (``uploads``).
Always: the blob is made after every entry is durable and every ledger is closed, so its content can never
change; a writer that fails or is given up makes none.

Source: our own; docs/blobs.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import BinaryIO

import attrs
import trio

from dlog.blobs.digest import ContentDigest
from dlog.blobs.errors import CorruptBlobError
from dlog.blobs.uploads import Condition, OwnUpload, begin_upload
from dlog.context import NamespaceContext
from dlog.errors import LogUnavailableError, translated
from ledger.handle import WriteHandle
from ledger.payloads import as_payload
from ledger.pickling import ProcessBound
from namespace.blob_nodes import Blob, BlobPiece

ENTRY_BYTES = 256 * 1024
PIECE_BYTES = 64 * 1024 * 1024
PIECES_OF_A_SIZE = 128  # then pieces are twice as long, so that a blob of any size has few of them
BLOCK_BYTES = 16 * ENTRY_BYTES  # submitted before their digest is computed; read from a file at once


@attrs.frozen(kw_only=True)
class BlobFacts:
    """The choices of the caller for a new blob."""

    name: str
    content_type: str
    labels: Mapping[str, str]
    condition: Condition


class BlobWriter(ProcessBound):
    """Takes the content of a blob, from its beginning to its end. Made by ``Namespace.blobs.open_writer``."""

    def __init__(self, context: NamespaceContext, facts: BlobFacts, upload: OwnUpload) -> None:
        self._context, self._facts, self._upload = context, facts, upload
        self._handle: WriteHandle | None = None
        self._pieces: list[BlobPiece] = []
        self._piece_bytes = self._size_bytes = 0
        self._left = bytearray()  # shorter than an entry
        self._digest = ContentDigest()
        self._result: Blob | None = None
        self._is_given_up = False
        self._turn = trio.Lock()

    def __repr__(self) -> str:
        return f"<BlobWriter of {self.name!r}, {self.size_bytes} bytes>"

    @property
    def name(self) -> str:
        """Of the blob."""
        return self._facts.name

    @property
    def size_bytes(self) -> int:
        """Bytes that were written until now."""
        return self._size_bytes

    @property
    def result(self) -> Blob | None:
        """The blob, once the block was left without an error; None before."""
        return self._result

    def give_up(self) -> None:
        """Have the end of the block make no blob, as if the block had raised an error."""
        self._is_given_up = True

    async def write(self, content: bytes | bytearray | memoryview) -> None:
        """Add bytes after the others. They are durable once the block was left.

        It waits while many bytes are in flight. If cancelled, or if it raises, the blob is given up.

        Raises:
            UploadLostError: The session with the metadata store ended. Put the blob again.
            TooFewBookiesError, LogUnavailableError, DiskFullError
        """
        payload = as_payload(content)
        done = False
        async with self._turn:
            try:
                async with self._explained("writing it"):
                    await self._write(payload)
                done = True
            finally:
                self._is_given_up |= not done

    @asynccontextmanager
    async def _explained(self, doing: str) -> AsyncIterator[None]:
        """Turn an error of a ledger into one of ``dlog``; a lost upload comes before what follows from it."""
        try:
            with translated(None, f"blob {self.name!r}, {doing}"):
                yield
        except LogUnavailableError:
            await self._upload.check_owned()
            raise

    async def _write(self, content: bytes) -> None:
        self._size_bytes += len(content)
        start = 0
        if self._left:
            start = ENTRY_BYTES - len(self._left)
            self._left += content[:start]
            if len(self._left) < ENTRY_BYTES:
                return
            entry = bytes(self._left)
            self._left.clear()
            await self._submit(entry)
        for first in range(start, len(content), BLOCK_BYTES):
            block = content[first : first + BLOCK_BYTES]
            whole = len(block) - len(block) % ENTRY_BYTES
            for offset in range(0, whole, ENTRY_BYTES):
                await self._submit(block[offset : offset + ENTRY_BYTES], hashed=False)
            self._left += block[whole:]
            await self._digest.update(block[:whole] if self._left else block)

    async def _submit(self, entry: bytes, *, hashed: bool = True) -> None:
        index = len(self._pieces) // PIECES_OF_A_SIZE
        if self._handle is not None and self._piece_bytes >= PIECE_BYTES << index:
            await self._close_piece(self._handle)
        if self._handle is None:
            self._handle = await self._upload.new_ledger()
        await self._handle.wait_bytes_in_flight_below(self._context.config.writer.bytes_in_flight_max)
        self._handle.submit(entry)
        self._piece_bytes += len(entry)
        if hashed:
            await self._digest.update(entry)

    async def _close_piece(self, handle: WriteHandle) -> None:
        await handle.wait_confirmed(handle.last_pushed)
        await handle.close()
        if handle.metadata.length_bytes != self._piece_bytes:
            raise CorruptBlobError(
                self.name,
                f"ledger {handle.ledger_id} was closed with {handle.metadata.length_bytes} bytes instead of"
                f" {self._piece_bytes}, so nothing was put",
            )
        self._pieces.append(BlobPiece(handle.ledger_id, self._piece_bytes))
        self._handle, self._piece_bytes = None, 0

    async def finish(self) -> None:
        """Make the blob of what was written. For ``open_writer``."""
        async with self._turn:
            if self._is_given_up:
                return
            async with self._explained("closing it"):
                if self._left:
                    await self._submit(bytes(self._left))
                if self._handle is not None:
                    await self._close_piece(self._handle)
            blob = Blob(
                name=self.name,
                blob_id=self._upload.blob_id,
                size_bytes=self._size_bytes,
                sha256=await self._digest.hexdigest(),
                content_type=self._facts.content_type,
                labels=self._facts.labels,
                created_ms=self._context.wall_ms(),
                entry_bytes=ENTRY_BYTES,
                pieces=tuple(self._pieces),
            )
            await self._upload.publish(blob, self._facts.condition)
            self._result = blob

    async def drop(self) -> None:
        """Delete what was written, unless it became a blob. For ``open_writer``."""
        if self._handle is not None:
            self._handle.abandon()
        if self._result is None:
            await self._upload.drop()


@asynccontextmanager
async def open_blob_writer(context: NamespaceContext, facts: BlobFacts) -> AsyncIterator[BlobWriter]:
    """The writer of a blob, which is made at the end of the block; see ``Namespace.blobs.open_writer``."""
    writer = BlobWriter(context, facts, await begin_upload(context, facts.name))
    try:
        yield writer
        await writer.finish()
    finally:
        await writer.drop()


async def write_from(writer: BlobWriter, content: bytes | bytearray | memoryview | BinaryIO) -> None:
    """Write bytes, or a file from where it stands to its end."""
    if isinstance(content, bytes | bytearray | memoryview):
        await writer.write(content)
        return
    while block := await trio.to_thread.run_sync(content.read, BLOCK_BYTES):
        await writer.write(block)
