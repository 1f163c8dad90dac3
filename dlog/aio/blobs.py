"""Writers and readers of blobs for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dlog.aio.face import Face, called, closing, forwarded
from dlog.blobs.reader import BlobReader as TrioReader
from dlog.blobs.writer import BlobWriter as TrioWriter
from ledger.payloads import as_payload
from ledger.runtime.tasks.face import Shown, shown
from namespace.blob_nodes import Blob


class BlobWriter(Face[TrioWriter]):
    """See ``dlog.blobs.BlobWriter``. Made by ``Namespace.blobs.open_writer``."""

    name: Shown[str] = shown(TrioWriter.name)
    size_bytes: Shown[int] = shown(TrioWriter.size_bytes)
    result: Shown[Blob | None] = shown(TrioWriter.result)

    write = forwarded(TrioWriter.write, content=as_payload)
    give_up = called(TrioWriter.give_up)


class BlobReader(Face[TrioReader]):
    """See ``dlog.blobs.BlobReader``. Made by ``Namespace.blobs.open_reader``; an iterable of parts."""

    blob: Shown[Blob] = shown(TrioReader.blob)
    position: Shown[int] = shown(TrioReader.position)

    aclose = closing(TrioReader.aclose)
    read = forwarded(TrioReader.read)
    read_part = forwarded(TrioReader.read_part)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while part := await self.read_part():
            yield part
