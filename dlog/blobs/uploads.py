"""Uploads: the ledgers of blobs that are being put, and of blobs that were replaced or deleted.

    put                                                   delete
    owner, upload WRITING      created                    blob deleted, upload GARBAGE created
    each ledger                created with its id        its ledgers deleted
    blob                       created, upload deleted    upload deleted

Each step is one transaction. A blob that takes the place of another one turns that into garbage in the same
transaction. If an upload that is WRITING has no owner, anyone makes it GARBAGE, by a write at the version
that was read. Its program, if it lives, can make no blob of it any more, because that deletes the upload at
the version that it knows. So a ledger is deleted only after it became garbage, and garbage never becomes a
blob. No clock decides.

Inside: the transactions, the sweep. Not inside: entries (``writer``, ``reader``), rights (``calls``).
Always: the owner is there before its upload; so a reader that has seen an upload and finds no owner knows
that the session of the owner has ended.

Source: our own; docs/blobs.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import unquote

import attrs
import trio

from dlog.blobs.errors import BlobConflictError, BlobExistsError, BlobNotFoundError, UploadLostError
from dlog.context import NamespaceContext
from dlog.errors import DLogError, LogMetadataError, LogUnavailableError, translated
from dlog.ownership import MadeHere, delete_ledger
from ledger.catalog.catalog import StoredLedger
from ledger.catalog.connection_retry import retry_lost_connection
from ledger.handle import WriteHandle
from ledger.metadata_store.errors import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    StoreError,
)
from ledger.metadata_store.store import Check, Create, Delete, MetadataStore, Operation, Put, parent_of
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from namespace.blob_nodes import (
    BLOB_KEY,
    Blob,
    BlobNodes,
    Upload,
    UploadState,
    blob_mark,
    decode_blob,
    decode_upload,
    encode_blob,
    encode_upload,
)
from namespace.node_reads import read_children, read_nodes
from namespace.policy import Right

CLEANUP_S = 5.0  # deleting what was written for a blob that is given up; a sweep does the rest
ATTEMPTS_MAX = 100  # each is lost to another client that changed the same blob
LOST = "the session with the metadata store ended meanwhile, and with it the claim to the new ledgers"

logger = get_logger(__name__)


@attrs.frozen
class StoredBlob:
    """A blob with the version of its node."""

    blob: Blob
    version: int


@attrs.frozen(kw_only=True)
class BlobSweep:
    """The result of a sweep: what was left of uploads that were interrupted, and of deleted blobs."""

    uploads: int
    """Uploads that no program owned."""
    ledgers: int
    """Their ledgers, which are deleted; bookies free the space later."""
    live: int
    """Uploads of programs that are still putting."""


@attrs.frozen
class Condition:
    """The rule for the blob that is under the name when another one is put."""

    replace: bool = False  # another blob may be there
    expect: str | None = None  # this blob must be there

    def check(self, name: str, found: StoredBlob | None) -> None:
        """Raise if the blob cannot be put over what was found.

        Raises:
            BlobExistsError, BlobConflictError
        """
        actual = None if found is None else found.blob.blob_id
        if self.expect is not None and actual != self.expect:
            raise BlobConflictError(name, self.expect, actual)
        if found is not None and not self.replace and self.expect is None:
            raise BlobExistsError(name)


async def find_blob(store: MetadataStore, namespace_path: str, name: str) -> StoredBlob | None:
    """The blob of this name, as the newest state of the store has it.

    Raises:
        LogMetadataError: Its node does not parse.
    """
    path = BlobNodes(store, namespace_path).blob_path(name)
    await store.sync(path)
    try:
        node = await store.get(path)
    except NoNodeError:
        return None
    return StoredBlob(decode_blob(name, node.value), node.stat.version)


async def list_blobs(context: NamespaceContext, prefix: str) -> list[Blob]:
    """All blobs whose names begin so, by name.

    Raises:
        LogMetadataError: A node does not parse.
    """
    nodes = BlobNodes(context.store, context.path)
    await context.store.sync(nodes.names_path)
    (groups,) = await read_children(context.store, [nodes.names_path])
    parents = [f"{nodes.names_path}/{group}" for group in groups]
    found: list[Blob] = []
    for parent, children in zip(parents, await read_children(context.store, parents), strict=True):
        names = {f"{parent}/{child}": unquote(child) for child in children}
        wanted = [path for path, name in names.items() if name.startswith(prefix)]
        for path, node in (await read_nodes(context.store, wanted)).items():
            if node is not None:
                found.append(decode_blob(names[path], node.value))
    return sorted(found, key=lambda blob: blob.name)


class OwnUpload:
    """An upload of this program, from its beginning to the blob. Made by ``begin_upload``."""

    def __init__(self, context: NamespaceContext, nodes: BlobNodes, upload: Upload) -> None:
        self._context, self._nodes, self._upload = context, nodes, upload
        self._version = 0
        self.mark = blob_mark(context.path, upload.name, upload.blob_id)

    @property
    def blob_id(self) -> str:
        """The id of the blob that it becomes."""
        return self._upload.blob_id

    @property
    def _upload_path(self) -> str:
        return self._nodes.upload_path(self.blob_id)

    @property
    def _owner_path(self) -> str:
        return self._nodes.owner_path(self.blob_id)

    async def new_ledger(self) -> WriteHandle:
        """Create a ledger that the upload names from the beginning.

        Raises:
            UploadLostError, TooFewBookiesError, LogUnavailableError
        """
        context, session = self._context, self._nodes.store
        # A ledger that is never healed begins with all its replicas.
        spec = attrs.evolve(context.config.ledger_spec(self.mark), may_be_smaller=False)
        with translated(None, f"blob {self._upload.name!r}, creating a ledger"):
            if context.client.is_in_session(session):
                return await context.client.create_from(spec, commit=self._register)
            handle = await context.client.create_from(spec)
            try:
                await self._register(handle.ledger_id)
            except (UploadLostError, StoreError):
                handle.abandon()
                await delete_ledger(context.client, handle.ledger_id, MadeHere(handle.metadata.custom))
                raise
            return handle

    async def _register(self, ledger_id: int, created: Create | None = None) -> None:
        """Name a ledger in the upload, in the transaction that creates it if there is one."""
        named = attrs.evolve(self._upload, ledger_ids=(*self._upload.ledger_ids, ledger_id))
        operations: list[Operation] = [] if created is None else [created]
        operations += [
            Check(self._owner_path, 0),
            Put(self._upload_path, encode_upload(named), self._version),
        ]

        async def is_done() -> bool:
            (node,) = (await read_nodes(self._nodes.store, [self._upload_path])).values()
            return node is not None and ledger_id in decode_upload(node.value).ledger_ids

        try:
            await self._commit(operations, is_done)
        except SessionExpiredError:
            raise UploadLostError(self._upload.name, LOST) from None
        except (BadVersionError, NoNodeError) as exc:
            if exc.path in (self._owner_path, self._upload_path):
                raise UploadLostError(self._upload.name, LOST) from None
            raise  # about the ledger
        self._upload, self._version = named, self._version + 1

    async def publish(self, blob: Blob, condition: Condition) -> None:
        """Make the blob. Another blob of its name is garbage from then on.

        Raises:
            UploadLostError
            BlobExistsError, BlobConflictError: Another program was faster. Nothing was changed.
            LogUnavailableError: The blob may or may not be there.
        """
        path, store = self._nodes.blob_path(blob.name), self._nodes.store

        async def is_done() -> bool:
            now = await find_blob(store, self._context.path, blob.name)
            # With a living session nobody else takes the owner away: it was put, and perhaps replaced since.
            is_ours = now is not None and now.blob.blob_id == blob.blob_id
            return is_ours or await store.exists(self._owner_path) is None

        with translated(None, f"blob {blob.name!r}, publishing it"):
            await _ensure(store, parent_of(path))
            for _ in range(ATTEMPTS_MAX):
                found = await find_blob(store, self._context.path, blob.name)
                condition.check(blob.name, found)
                operations: list[Operation] = [
                    Delete(self._owner_path),
                    Delete(self._upload_path, self._version),
                ]
                if found is None:
                    operations.append(Create(path, encode_blob(blob)))
                else:
                    operations.append(Put(path, encode_blob(blob), found.version))
                    operations.append(_garbage_of(self._nodes, found.blob))
                try:
                    await self._commit(operations, is_done)
                except SessionExpiredError:
                    now = await find_blob(self._context.store, self._context.path, blob.name)
                    if now is None or now.blob.blob_id != blob.blob_id:
                        raise UploadLostError(blob.name, LOST) from None
                except (BadVersionError, NoNodeError, NodeExistsError) as exc:
                    if exc.path in (self._owner_path, self._upload_path):
                        raise UploadLostError(blob.name, LOST) from None
                    continue  # another program changed the blob just now
                return
        raise LogUnavailableError(
            f"blob {blob.name!r}: other programs replaced it during each of {ATTEMPTS_MAX} attempts; try"
            " again"
        )

    async def check_owned(self) -> None:
        """Raise UploadLostError if it is known that this program does not own the upload any more."""
        store = self._nodes.store
        try:
            is_owned = await store.exists(self._owner_path) is not None
        except SessionExpiredError:
            is_owned = False
        except StoreError:
            return
        if not is_owned:
            raise UploadLostError(self._upload.name, LOST)

    async def _commit(self, operations: Sequence[Operation], is_done: Callable[[], Awaitable[bool]]) -> None:
        """Commit, and find out what became of it if the reply was lost.

        Raises:
            BadVersionError, NoNodeError, NodeExistsError: From the store; nothing was changed.
            ConnectionLostError, SessionExpiredError: It may or may not be done.
        """
        store, is_repeated = self._nodes.store, False

        async def attempt() -> None:
            nonlocal is_repeated
            if is_repeated:
                await store.sync(self._upload_path)
                if await is_done():
                    return
            is_repeated = True
            await store.commit(operations)

        await retry_lost_connection(attempt, timeout_s=self._context.retry_timeout_s(Right.WRITE))

    async def drop(self) -> None:
        """Give the upload up, and delete its ledgers, if that works at once. A sweep does the rest.

        Without effect if it has become a blob.
        """
        with trio.move_on_after(CLEANUP_S) as scope:
            scope.shield = True
            try:
                with translated(None, f"blob {self._upload.name!r}, giving it up"):
                    await self._drop()
            except DLogError as exc:
                logger.info(
                    "blob %r was given up; a sweep deletes what was written: %s",
                    self._upload.name,
                    exc,
                    extra=event("blob.upload_left", blob=self._upload.name, error=exc),
                )

    async def _drop(self) -> None:
        nodes, path = self._nodes, self._upload_path
        try:
            try:
                node = await nodes.store.get(path)
            except NoNodeError:  # it is a blob, or was not begun
                await nodes.store.delete(self._owner_path)
                return
            garbage = attrs.evolve(decode_upload(node.value), state=UploadState.GARBAGE)
            put = Put(path, encode_upload(garbage), node.stat.version)
            await nodes.store.commit([put, Delete(self._owner_path)])
            await _collect(self._context, garbage)
        except (NoNodeError, BadVersionError):
            return  # a sweep has it
        except SessionExpiredError:
            await sweep_uploads(self._context)


async def begin_upload(context: NamespaceContext, name: str) -> OwnUpload:
    """Begin to put a blob, which this program's present session owns. If it fails, nothing is left."""

    async def begin() -> OwnUpload:
        with translated(None, f"blob {name!r}, beginning to put it"):
            nodes = BlobNodes(context.store.current_session(), context.path)
            upload = Upload(blob_id=secrets.token_hex(16), name=name, state=UploadState.WRITING)
            owner_path, upload_path = nodes.owner_path(upload.blob_id), nodes.upload_path(upload.blob_id)
            own = OwnUpload(context, nodes, upload)
            try:
                await nodes.store.create(owner_path, ephemeral=True, parents=True)
                await nodes.store.create(upload_path, encode_upload(upload), parents=True)
            except BaseException:
                await own.drop()
                raise
        return own

    return await context.while_store_is_away(Right.WRITE, begin)


async def delete_blob(context: NamespaceContext, name: str, expect: str | None) -> None:
    """Delete a blob; its ledgers are garbage from then on. Collecting them is the caller's.

    Raises:
        BlobNotFoundError, BlobConflictError
        LogUnavailableError: It may or may not be deleted.
    """
    nodes, deleted = BlobNodes(context.store, context.path), ""

    async def delete() -> None:
        nonlocal deleted
        with translated(None, f"blob {name!r}, deleting it"):
            for _ in range(ATTEMPTS_MAX):
                found = await find_blob(nodes.store, context.path, name)
                actual = None if found is None else found.blob.blob_id
                if deleted and actual != deleted:
                    return  # the reply to an earlier attempt was lost
                if expect is not None and actual != expect:
                    raise BlobConflictError(name, expect, actual)
                if found is None:
                    raise BlobNotFoundError(name)
                deleted = found.blob.blob_id
                garbage = _garbage_of(nodes, found.blob)
                try:
                    await nodes.store.commit([Delete(nodes.blob_path(name), found.version), garbage])
                except (BadVersionError, NoNodeError, NodeExistsError):
                    deleted = ""  # this attempt changed nothing
                    continue  # another program replaced or deleted it just now
                return
        raise LogUnavailableError(
            f"blob {name!r}: other programs replaced it during each of {ATTEMPTS_MAX} attempts; try again"
        )

    await context.while_store_is_away(Right.WRITE, delete)


async def sweep_uploads(context: NamespaceContext) -> BlobSweep:
    """Delete the ledgers of uploads that nobody owns any more, and of blobs that are gone.

    Repeating it is safe.

    Raises:
        LogUnavailableError, AccessDeniedError
    """

    async def sweep() -> BlobSweep:
        with translated(None, "sweeping interrupted uploads of blobs"):
            return await _sweep(context)

    return await context.while_store_is_away(Right.WRITE, sweep)


async def _sweep(context: NamespaceContext) -> BlobSweep:
    nodes = BlobNodes(context.store, context.path)
    await nodes.store.sync(nodes.uploads_path)
    (ids,) = await read_children(nodes.store, [nodes.uploads_path])
    uploads = ledgers = live = 0
    for blob_id in ids:
        path = nodes.upload_path(blob_id)
        try:
            node = await nodes.store.get(path)
            upload = decode_upload(node.value)
            if upload.state is UploadState.WRITING:
                if await nodes.store.exists(nodes.owner_path(blob_id)) is not None:
                    live += 1
                    continue
                upload = attrs.evolve(upload, state=UploadState.GARBAGE)
                await nodes.store.put(path, encode_upload(upload), expected=node.stat.version)
        except (NoNodeError, BadVersionError):
            continue  # it became a blob, or another sweep has it
        except LogMetadataError as exc:
            logger.warning(
                "%s: %s; it was left as it is", path, exc, extra=event("blob.upload_damaged", path=path)
            )
            continue
        await _collect(context, upload)
        uploads, ledgers = uploads + 1, ledgers + len(upload.ledger_ids)
        logger.info(
            "upload of blob %r was swept: %d ledgers",
            upload.name,
            len(upload.ledger_ids),
            extra=event("blob.upload_swept", blob=upload.name, ledgers=len(upload.ledger_ids)),
        )
    return BlobSweep(uploads=uploads, ledgers=ledgers, live=live)


async def _collect(context: NamespaceContext, garbage: Upload) -> None:
    """Delete the ledgers of garbage, and then the upload that names them."""
    claim = _OfGarbage(BlobNodes(context.store, context.path), garbage.blob_id)
    for ledger_id in garbage.ledger_ids:
        await delete_ledger(context.client, ledger_id, claim)
    try:
        await context.store.delete(claim.nodes.upload_path(garbage.blob_id))
    except NoNodeError:
        pass  # another sweep was faster


def _garbage_of(nodes: BlobNodes, blob: Blob) -> Create:
    """The upload that a blob becomes again when it is replaced or deleted."""
    ledger_ids = tuple(piece.ledger_id for piece in blob.pieces)
    garbage = Upload(blob_id=blob.blob_id, name=blob.name, state=UploadState.GARBAGE, ledger_ids=ledger_ids)
    return Create(nodes.upload_path(blob.blob_id), encode_upload(garbage))


@attrs.frozen
class _OfGarbage:
    """The claim to delete a ledger: an upload that is garbage names it, and it was made for that blob."""

    nodes: BlobNodes
    blob_id: str

    async def refusal(self, ledger: StoredLedger) -> str | None:
        """See ``dlog.ownership.Claim``."""
        path = self.nodes.upload_path(self.blob_id)
        await self.nodes.store.sync(path)
        (node,) = (await read_nodes(self.nodes.store, [path])).values()
        upload = None if node is None else decode_upload(node.value)
        if (
            upload is None
            or upload.state is not UploadState.GARBAGE
            or ledger.ledger_id not in upload.ledger_ids
        ):
            return f"the node {path} does not give it up"
        if ledger.metadata.custom.get(BLOB_KEY) != self.blob_id.encode():
            return f"it was not made for the blob {self.blob_id}"
        return None


async def _ensure(store: MetadataStore, path: str) -> None:
    try:
        await store.create(path, parents=True)
    except NodeExistsError:
        pass
