"""The calls of a namespace on its blobs.

Inside: the checks before each call, and the record of a deletion in the audit log. Not inside: putting
(``writer``), getting (``reader``), nodes (``uploads``).
Always: a right on a blob is the right on the log ``.blobs/NAME``, which no log can have as its name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import BinaryIO

import attrs

from dlog.blobs.errors import BlobNotFoundError, check_blob_name
from dlog.blobs.reader import BlobReader, open_blob_reader
from dlog.blobs.uploads import (
    BlobSweep,
    Condition,
    StoredBlob,
    delete_blob,
    find_blob,
    list_blobs,
    sweep_uploads,
)
from dlog.blobs.writer import BlobFacts, BlobWriter, open_blob_writer, write_from
from dlog.context import NamespaceContext
from dlog.errors import ConfigError, DLogError, translated
from dlog.operations.calls import waits_for_store
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.pickling import ProcessBound
from ledger.runtime.audit import audited_async
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from namespace.access_control.entries import Denial
from namespace.blob_nodes import RIGHTS_PREFIX, Blob
from namespace.policy import Right

LABELS_BYTES_MAX = 65_536

logger = get_logger(__name__)


@attrs.frozen
class BlobCalls(ProcessBound):
    """``Namespace.blobs``: contents of any size under names, beside the logs."""

    context: NamespaceContext = attrs.field(repr=False)

    async def put(
        self,
        name: str,
        content: bytes | bytearray | memoryview | BinaryIO,
        *,
        content_type: str = "",
        labels: Mapping[str, str] | None = None,
        replace: bool = False,
        expect: str | None = None,
    ) -> Blob:
        """Put a blob: bytes, or a binary file from where it stands to its end. It is durable on return.

        Others see the whole content or nothing of it. If cancelled, it may or may not be there; if the
        program is killed, what was written is deleted by a later ``put``, ``delete`` or ``sweep``.

        Args:
            content_type, labels: They are kept with the blob, at most 64 KiB.
            replace: Another blob of this name may be there; its content is deleted. It needs the right
                ``admin``, and so does ``expect``.
            expect: Replace the blob with this id (``Blob.blob_id``) and no other.

        Raises:
            InvalidBlobNameError
            BlobExistsError: There is such a blob; without ``replace`` and ``expect``.
            BlobConflictError: The blob that is there is not the expected one.
            UploadLostError: The session with the metadata store ended meanwhile. Put it again.
            ConfigError: The namespace is opened with encryption, which blobs do not have.
            TooFewBookiesError, LogUnavailableError, DiskFullError, AccessDeniedError
        """
        opening = self.open_writer(
            name, content_type=content_type, labels=labels, replace=replace, expect=expect
        )
        async with opening as writer:
            await write_from(writer, content)
        assert writer.result is not None  # the block ended without an error
        return writer.result

    def open_writer(
        self,
        name: str,
        *,
        content_type: str = "",
        labels: Mapping[str, str] | None = None,
        replace: bool = False,
        expect: str | None = None,
    ) -> AbstractAsyncContextManager[BlobWriter]:
        """Write a blob part by part, for the duration of an ``async with``.

        The end of the block makes the blob, which ``BlobWriter.result`` then is. If the block raises, there
        is none. Arguments and errors are those of ``put``.
        """
        facts = BlobFacts(
            name=check_blob_name(name),
            content_type=content_type,
            labels=_checked_labels(content_type, labels or {}),
            condition=Condition(replace, expect),
        )
        self.context.check_open(Right.WRITE)
        return self._writer(facts)

    @asynccontextmanager
    async def _writer(self, facts: BlobFacts) -> AsyncIterator[BlobWriter]:
        condition = facts.condition
        replaces = condition.replace or condition.expect is not None
        await self._permitted(facts.name, Right.ADMIN if replaces else Right.WRITE, Denial.WRITE)
        if self.context.config.writer.encryption is not None:
            raise ConfigError(
                f"blob {facts.name!r}: the namespace is opened with encryption, and blobs are not encrypted."
                " Nothing was put; encrypt the content, and open the namespace without encryption for it"
            )
        await self._sweep_quietly()
        condition.check(facts.name, await self._found(facts.name))
        async with open_blob_writer(self.context, facts) as writer:
            yield writer
        if replaces:
            await self._sweep_quietly()

    def open_reader(
        self, name: str, *, start: int = 0, end: int | None = None
    ) -> AbstractAsyncContextManager[BlobReader]:
        """Read a blob, or the bytes from ``start`` up to ``end``, for the duration of an ``async with``.

        Only the entries of the range are read, and each is checked. If the whole blob is read, its digest is
        checked, too. A reader sees one content: if the blob is replaced meanwhile, the old one, or an error.

        Args:
            start, end: Offsets as in a slice of bytes, but none is negative. Those after the end of the blob
                are taken as its end.

        Raises:
            ValueError: ``start`` is negative, or greater than ``end``.
            InvalidBlobNameError, BlobNotFoundError, LogMetadataError, LogUnavailableError, AccessDeniedError
        """
        if start < 0 or (end is not None and end < start):
            raise ValueError(f"blob {name!r}: start={start!r} and end={end!r} are no range")
        self.context.check_open()
        return self._reader(check_blob_name(name), start, end)

    @asynccontextmanager
    async def _reader(self, name: str, start: int, end: int | None) -> AsyncIterator[BlobReader]:
        await self._permitted(name, Right.READ)
        async with open_blob_reader(self.context, name, start, end) as reader:
            yield reader

    async def get(self, name: str, *, start: int = 0, end: int | None = None) -> bytes:
        """The content of a blob, or of a range of it, in memory; see ``open_reader``. May be cancelled.

        Raises:
            ValueError: ``start`` is negative, or greater than ``end``.
            BlobGoneError: It was replaced or deleted meanwhile.
            CorruptBlobError: The stored content is not what was put.
            InvalidBlobNameError, BlobNotFoundError, LogMetadataError, LogUnavailableError, AccessDeniedError
        """
        async with self.open_reader(name, start=start, end=end) as reader:
            return await reader.read()

    @waits_for_store
    async def describe(self, name: str) -> Blob:
        """The facts about a blob. May be cancelled.

        Raises:
            InvalidBlobNameError, BlobNotFoundError, LogMetadataError, LogUnavailableError, AccessDeniedError
        """
        await self._permitted(check_blob_name(name), Right.READ)
        found = await self._found(name)
        if found is None:
            raise BlobNotFoundError(name)
        return found.blob

    @waits_for_store
    async def list(self, prefix: str = "") -> Sequence[Blob]:
        """The blobs whose names begin so and that this program may read, by name. May be cancelled.

        Raises:
            LogMetadataError, LogUnavailableError
        """
        self.context.check_open()
        with translated(None, "listing blobs"):
            found = await list_blobs(self.context, prefix)
            names = [RIGHTS_PREFIX + blob.name for blob in found]
            readable = set(await self.context.permissions.readable(names))
        return [blob for blob in found if RIGHTS_PREFIX + blob.name in readable]

    async def delete(self, name: str, *, expect: str | None = None) -> None:
        """Delete a blob. Its space is free later, when the bookies collect garbage.

        If cancelled, it may or may not be deleted.

        Args:
            expect: Delete the blob with this id and no other.

        Raises:
            BlobConflictError: The blob that is there is not the expected one.
            InvalidBlobNameError, BlobNotFoundError, LogMetadataError, LogUnavailableError, AccessDeniedError
        """
        check_blob_name(name)
        self.context.check_open(Right.ADMIN)
        async with audited_async("delete blob", f"{self.context.uri} {name}"):
            await self._permitted(name, Right.ADMIN, Denial.DELETE)
            await delete_blob(self.context, name, expect)
        await self._sweep_quietly()

    async def sweep(self) -> BlobSweep:
        """Delete what interrupted programs left: ledgers of blobs that were not put, or that were deleted.

        ``put`` and ``delete`` do the same. What a program still writes is left alone. If cancelled, a part
        may be deleted; repeating it is safe.

        Raises:
            LogUnavailableError
            AccessDeniedError: The policy lets this principal not administer all logs.
        """
        self.context.check_open(Right.ADMIN)
        with translated(None, "sweeping interrupted uploads of blobs"):
            await self.context.permissions.check_administrator()
        return await sweep_uploads(self.context)

    async def _found(self, name: str) -> StoredBlob | None:
        with translated(None, f"blob {name!r}, looking for it"):
            return await find_blob(self.context.store, self.context.path, name)

    async def _permitted(self, name: str, right: Right, *operations: Denial) -> None:
        self.context.check_open(right)

        async def check() -> None:
            await self.context.permissions.check(RIGHTS_PREFIX + name, right)
            await self.context.access.check(RIGHTS_PREFIX + name, operations)

        with translated(None, f"blob {name!r}, reading the policy"):
            await retry_lost_connection(check, timeout_s=self.context.retry_timeout_s(right))

    async def _sweep_quietly(self) -> None:
        """Sweep; what cannot be deleted now is left to the next sweep."""
        try:
            await sweep_uploads(self.context)
        except DLogError as exc:
            logger.info(
                "interrupted uploads of blobs were not swept: %s",
                exc,
                extra=event("blob.not_swept", error=exc),
            )


def _checked_labels(content_type: str, labels: Mapping[str, str]) -> Mapping[str, str]:
    texts = [content_type, *labels, *labels.values()]
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"content_type and labels of a blob are texts, not {text!r}")
    size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if size > LABELS_BYTES_MAX:
        raise ConfigError(f"content_type and labels of a blob have {size} bytes; at most {LABELS_BYTES_MAX}")
    return dict(labels)
