"""Writers and readers of blobs without ``async``."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from dlog.blobs.reader import BlobReader as TrioReader
from dlog.blobs.writer import BlobWriter as TrioWriter
from ledger.payloads import as_payload
from ledger.runtime.tasks.blocking_face import HeldFace, called, forwarded
from ledger.runtime.tasks.face import Shown, shown
from namespace.blob_nodes import Blob


class BlobWriter(HeldFace[TrioWriter]):
    """See ``dlog.blobs.BlobWriter``. Made by ``Namespace.blobs.open_writer``.

    Closed by ``close`` or the end of a ``with`` block. If the block raises, there is no blob.
    """

    name: Shown[str] = shown(TrioWriter.name)
    size_bytes: Shown[int] = shown(TrioWriter.size_bytes)
    result: Shown[Blob | None] = shown(TrioWriter.result)

    write = forwarded(TrioWriter.write, content=as_payload)
    give_up = called(TrioWriter.give_up)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            self.give_up()
        super().__exit__(kind, exc, trace)


class BlobReader(HeldFace[TrioReader]):
    """See ``dlog.blobs.BlobReader``. Made by ``Namespace.blobs.open_reader``; an iterable of parts."""

    blob: Shown[Blob] = shown(TrioReader.blob)
    position: Shown[int] = shown(TrioReader.position)

    read = forwarded(TrioReader.read)
    read_part = forwarded(TrioReader.read_part)

    def __iter__(self) -> Iterator[bytes]:
        while part := self.read_part():
            yield part
