"""A backup as a namespace that is only read: nothing is restored, and only what is read is fetched.

    backup:/DIRECTORY[?at=TIME]
    s3://BUCKET/PREFIX[?at=TIME&...]   the rest of the query is that of pyarrow's file system

The nodes of the manifest are put into a metadata store in memory, and its chunks take the place of a bookie:
a request for entries is answered from the chunk that has them. Ledgers are closed where the backup ends.

Inside: the URI, the chunks as a replica. Not inside: which nodes there are (``plan``), bytes (``format``).
Always: nothing is written; bytes that the manifest does not name are an error, with the name of the object.

Source: our own; docs/backup.md.
"""

from __future__ import annotations

import bisect
import datetime
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import attrs
import trio

from dlog.backup.backups import manifest_at
from dlog.backup.errors import BackupDamagedError, BackupNotFoundError
from dlog.backup.format import EntryChunk, LedgerCopy, entry_id_of
from dlog.backup.plan import RestorePlan, plan_restore
from dlog.backup.restoring import restored_metadata
from dlog.backup.store import BackupStore, open_store
from dlog.context import EMBEDDED_NAMESPACE_PATH
from dlog.errors import DLogError, InvalidUriError
from ledger.catalog.catalog import open_catalog
from ledger.catalog.metadata_codec import encode_metadata
from ledger.catalog.paths import Layout, ledger_path
from ledger.client import LedgerClient, open_ledger_client
from ledger.codes import Code
from ledger.config import ClientConfig
from ledger.context import ClientSeams
from ledger.deploy.embedded import LEDGERS_ROOT
from ledger.errors import BookieError, EntryGoneError
from ledger.metadata import Ensemble
from ledger.metadata_store.memory import MemoryStore, MemoryTree, open_memory_store
from ledger.metadata_store.read_only import ReadOnlyStore
from ledger.metadata_store.store import Create, MetadataStore, ancestors_of
from ledger.runtime.tasks.background import open_background
from ledger.transport.bookie_connection import BookieConnection, OnReply, PendingRequest, Resolve
from ledger.transport.config import TransportConfig
from ledger.transport.dial import Address
from ledger.transport.transport import Transport
from ledger.wire.messages import BatchReadReply, BatchReadRequest, ReadReply, ReadRequest, Reply, Request

CACHE_BYTES = 64 << 20  # of chunks that were fetched
REPLICA = "backup"  # stands for a bookie in messages
_DAMAGE_BYTES = 1024  # that a damaged chunk takes of the cache
_AT = re.compile("at=(.*)", re.DOTALL)


@attrs.frozen
class BackupUri:
    """A backup that a URI names."""

    destination: str
    at: datetime.datetime | None  # None: the newest backup


def parse_backup_uri(text: str) -> BackupUri:
    """The backup that a URI names.

    Raises:
        InvalidUriError: It cannot be parsed, or has a password.
    """
    parts = urlsplit(text.strip())
    bare = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"
    if "@" in parts.netloc or ":" in parts.netloc:  # a secret may have a slash, and then it ends there
        raise InvalidUriError(
            f"URI {parts.scheme}://***: it has a name or a password; put keys into the environment"
        )
    fields = [each for each in parts.query.split("&") if each]
    moments = [found[1] for each in fields if (found := _AT.fullmatch(each))]
    others = [each for each in fields if not _AT.fullmatch(each)]
    if len(moments) > 1 or parts.fragment:
        raise InvalidUriError(f"URI {bare}: give at=TIME once, and no fragment")
    at = _moment(bare, unquote(moments[0])) if moments else None
    if parts.scheme == "s3":
        query = f"?{'&'.join(others)}" if others else ""
        return BackupUri(f"{bare}{query}", at)
    path = unquote(parts.path)
    if others:
        raise InvalidUriError(f"URI {text!r}: {others[0]!r} is unknown; the query of a backup is at=TIME")
    if parts.netloc or not path.startswith("/") or "\0" in path:
        raise InvalidUriError(f"URI {text!r}: give backup:/PATH, with the whole path of the directory")
    return BackupUri(str(Path(path)), at)


def _moment(uri: str, text: str) -> datetime.datetime:
    try:
        return datetime.datetime.fromisoformat(text).astimezone()  # without an offset: of this machine
    except ValueError:
        raise InvalidUriError(
            f"URI {uri}: at={text!r} is no time, such as 2026-11-01T12:30 or 2026-11-01T12:30:00+00:00"
        ) from None


@asynccontextmanager
async def open_backup(uri: str, config: ClientConfig) -> AsyncIterator[tuple[MetadataStore, LedgerClient]]:
    """The nodes below ``EMBEDDED_NAMESPACE_PATH`` and the ledgers of a backup, for the duration of the block.

    Raises:
        InvalidUriError
        BackupNotFoundError: There is none, or none of that time.
        BackupDamagedError: Its manifest is damaged.
        BackupUnreachableError
        LogMetadataError: A node in it does not parse.
    """
    where = parse_backup_uri(uri)
    store = open_store(where.destination)
    manifest = await manifest_at(store, where.at)
    plan = plan_restore(manifest)
    async with open_memory_store(MemoryTree()) as nodes:
        await _put_nodes(nodes, plan)
        readable = ReadOnlyStore(nodes)
        seams = ClientSeams(
            open_transport=partial(_open_transport, BackupEntries(store, manifest.cut_ms, plan.ledgers))
        )
        async with open_ledger_client(
            readable, _dial, config, root=LEDGERS_ROOT, read_only=True, seams=seams
        ) as client:
            yield readable, client


async def _put_nodes(store: MemoryStore, plan: RestorePlan) -> None:
    layout = (await open_catalog(store, LEDGERS_ROOT, Layout.LONG_HIERARCHICAL)).layout
    nodes = {EMBEDDED_NAMESPACE_PATH: b""}
    for ledger_id, copy in plan.ledgers.items():
        metadata = attrs.evolve(restored_metadata(copy), ensembles=(Ensemble(0, (REPLICA,)),))
        nodes[ledger_path(LEDGERS_ROOT, layout, ledger_id)] = encode_metadata(metadata)
    for path, value in plan.nodes.items():
        nodes[f"{EMBEDDED_NAMESPACE_PATH}/{path}"] = value
    every = {path: b"" for each in nodes for path in ancestors_of(each)} | nodes
    missing = [path for path in sorted(every) if await store.exists(path) is None]
    await store.commit([Create(path, every[path]) for path in missing])


class BackupEntries:
    """The entries of a backup by ledger and id. Chunks are fetched when they are needed, and checked."""

    def __init__(self, store: BackupStore, cut_ms: int, ledgers: Mapping[int, LedgerCopy]) -> None:
        self._store, self._cut_ms, self._ledgers = store, cut_ms, ledgers
        self._cache: OrderedDict[str, dict[int, bytes] | BackupDamagedError] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._fetches: dict[str, trio.Event] = {}

    async def read(self, ledger_id: int, first: int, count: int, size_bytes_max: int) -> list[bytes]:
        """Entries that follow each other, at least one; none if the backup does not have the first.

        Raises:
            BackupDamagedError: The object with the first one is missing, or was changed.
            BackupNotFoundError: It is missing, because the backup was pruned.
            BackupUnreachableError
        """
        copy = self._ledgers.get(ledger_id)
        place = None
        if copy is not None and 0 <= first <= copy.last:
            place = bisect.bisect_right(copy.chunks, first, key=lambda chunk: chunk.first) - 1
        if copy is None or place is None:
            return []
        chunk = copy.chunks[place]
        entries = await self._chunk(ledger_id, chunk)
        bodies: list[bytes] = []
        size_bytes = 0
        for entry_id in range(first, min(first + count, chunk.last + 1, copy.last + 1)):
            body = entries.get(entry_id)
            if body is None or (bodies and size_bytes + len(body) > size_bytes_max):
                break
            bodies.append(body)
            size_bytes += len(body)
        return bodies

    async def _chunk(self, ledger_id: int, chunk: EntryChunk) -> dict[int, bytes]:
        name = chunk.name(ledger_id)
        while name not in self._cache:
            under_way = self._fetches.get(name)
            if under_way is not None:
                await under_way.wait()  # and if it failed, try again
                continue
            self._fetches[name] = trio.Event()
            try:
                found = await self._fetched(ledger_id, chunk)
                self._keep(name, found, chunk.size_bytes)
            finally:
                self._fetches.pop(name).set()
        self._cache.move_to_end(name)
        kept = self._cache[name]
        if isinstance(kept, BackupDamagedError):
            raise BackupDamagedError(kept.name, kept.evidence)  # another one: each keeps its own traceback
        return kept

    async def _fetched(self, ledger_id: int, chunk: EntryChunk) -> dict[int, bytes] | BackupDamagedError:
        try:
            bodies = await self._store.read_chunk(ledger_id, chunk)
        except BackupDamagedError as exc:
            await self._store.check_there()
            await self._check_kept()
            return exc  # it stays so: a reader that looks for the end of the damage fetches it once
        return {entry_id_of(body): body for body in bodies}

    async def _check_kept(self) -> None:
        """Entries of a pruned backup are no gap: a newer backup may have them. Its manifest goes first."""
        if all(name.cut_ms != self._cut_ms for name in await self._store.names()):
            moment = datetime.datetime.fromtimestamp(self._cut_ms / 1000).astimezone()
            raise BackupNotFoundError(
                f"{self._store.where}: the backup of {moment.isoformat(' ', 'milliseconds')} was pruned while"
                " it was read; open the namespace again for a backup that is there"
            )

    def _keep(self, name: str, found: dict[int, bytes] | BackupDamagedError, size_bytes: int) -> None:
        self._cache[name] = found
        self._sizes[name] = _DAMAGE_BYTES if isinstance(found, BackupDamagedError) else size_bytes
        while sum(self._sizes.values()) > CACHE_BYTES and len(self._cache) > 1:
            oldest, _ = self._cache.popitem(last=False)
            del self._sizes[oldest]


async def _dial(_address: Address) -> trio.abc.Stream:
    raise AssertionError("a backup has no bookies")  # the transport below answers each request itself


class _ChunkTransport(Transport):
    """Answers reads from the chunks, and nothing else."""

    def __init__(
        self, entries: BackupEntries, resolve: Resolve, config: TransportConfig, nursery: trio.Nursery
    ) -> None:
        super().__init__(_dial, resolve, config, nursery)
        self._entries = entries
        self._never = BookieConnection(REPLICA, "data", 2, dial=_dial, resolve=resolve, config=config)

    def send(
        self,
        bookie: str,
        request: Request,
        on_reply: OnReply,
        *,
        high_priority: bool = False,
        timeout_s: float | None = None,
    ) -> PendingRequest:
        """See ``Transport.send``. Fetching an object has no time limit but that of the destination."""
        pending = PendingRequest(self._never, request, on_reply, 0.0, _nothing)
        self._nursery.start_soon(self._answer, bookie, pending)
        return pending

    async def _answer(self, bookie: str, pending: PendingRequest) -> None:
        try:
            result: Reply | BookieError = await self._reply(pending.request)
        except BackupDamagedError as exc:
            result = EntryGoneError(bookie, str(exc))
        except (DLogError, OSError) as exc:  # the destination is away
            result = BookieError(bookie, str(exc))
        pending.complete(result)

    async def _reply(self, request: Request) -> Reply:
        match request:
            case BatchReadRequest():
                count = request.count_max if request.count_max > 0 else 2**31
                bodies = await self._entries.read(
                    request.ledger_id, request.entry_id, count, request.size_bytes_max
                )
                code = Code.OK if bodies else Code.NO_ENTRY
                return BatchReadReply(code, request.ledger_id, request.entry_id, request.request_id, bodies)
            case ReadRequest():
                bodies = await self._entries.read(request.ledger_id, request.entry_id, 1, 0)
                if not bodies:
                    return ReadReply(Code.NO_ENTRY, request.ledger_id, request.entry_id)
                return ReadReply(Code.OK, request.ledger_id, request.entry_id, bodies[0])
            case _:
                await trio.lowlevel.checkpoint()
                raise DLogError(f"a backup has no answer to {type(request).__name__}")


def _nothing() -> None:
    """There is nothing to do when a request is forgotten."""


@asynccontextmanager
async def _open_transport(
    entries: BackupEntries, resolve: Resolve, config: TransportConfig
) -> AsyncIterator[Transport]:
    async with open_background() as nursery:
        transport = _ChunkTransport(entries, resolve, config, nursery)
        nursery.start_soon(transport.timers.run)
        try:
            yield transport
        finally:
            transport.close()
