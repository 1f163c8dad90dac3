"""One backup: what the namespace has now, less what the destination has, and a manifest.

    nodes ──▶ ends of all ledgers that may have grown (the cut) ──▶ chunks ──▶ manifest

A ledger never changes, so of one that was copied before only the tail is sent. A tail is a chunk of its own.
It is sent again, together with what follows it, once that is as large, until it has a MiB: so a log that
grows by a record in each round has few chunks, and each of its bytes is sent about ten times.

Inside: these steps. Not inside: reading (``source``), objects (``store``), more rounds (``replication``).
Always: a manifest names only chunks that are durable; a log in it is a prefix of the log; a ledger that is
deleted during a round lets it begin again with the nodes of a later moment, and what was sent is kept.

Source: our own; docs/backup.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.metadata import version

import attrs
import trio

from dlog.backup.content import NamedSegment, blobs_in, log_of, logs_in, segments_in
from dlog.backup.errors import BackupDamagedError, BackupError
from dlog.backup.format import BackupManifest, LedgerCopy, chunk_bytes, entry_id_of, length_of
from dlog.backup.source import BackupSource, EntrySource, LedgerNow
from dlog.backup.store import BackupStore
from dlog.errors import LogNotFoundError
from ledger.catalog.metadata_codec import encode_metadata
from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger
from ledger.runtime.tasks.task_errors import for_each
from namespace.segments.segment import TruncationStatus

CHUNK_BYTES = 4 * 1024 * 1024  # a chunk is written when it has as many
SEALED_BYTES = 1024 * 1024  # a chunk that is not smaller is never sent again
ROUNDS_MAX = 20  # each is lost to a ledger that was deleted meanwhile
ENDS_AT_ONCE = 64  # ledgers whose ends are read at the same time
LEDGERS_AT_ONCE = 4  # that are copied

logger = get_logger(__name__)


@attrs.frozen(kw_only=True)
class BackupProgress:
    """How far a backup is."""

    ledgers_done: int
    ledgers_total: int  # that have something new
    entries_sent: int
    bytes_sent: int


OnProgress = Callable[[BackupProgress], None]


@attrs.frozen(kw_only=True)
class Backup:
    """A backup that was made, or one that is there."""

    cut_ms: int  # each log ends at a record that was its last visible one at this time or shortly before
    begun_ms: int  # each record that was visible at this time is in it
    logs: int
    ledgers: int
    size_bytes: int  # of all its chunks
    missing_entries: int  # that no bookie had; readers of a restored log find a gap there
    lost_ledgers: int  # that segments name and the cluster does not have; likewise

    @property
    def is_whole(self) -> bool:
        """True if nothing was missing in the namespace."""
        return not self.missing_entries and not self.lost_ledgers

    @classmethod
    def of(cls, manifest: BackupManifest) -> Backup:
        """The facts of a manifest."""
        copies = manifest.ledgers.values()
        return cls(
            cut_ms=manifest.cut_ms,
            begun_ms=manifest.begun_ms,
            logs=len(logs_in(manifest)),
            ledgers=len(copies),
            size_bytes=sum(chunk.size_bytes for copy in copies for chunk in copy.chunks),
            missing_entries=sum(len(copy.missing) for copy in copies),
            lost_ledgers=len(manifest.lost),
        )


@attrs.define
class _Sent:
    ledgers_done: int = 0
    ledgers_total: int = 0
    entries: int = 0
    bytes: int = 0


class BackupRounds:
    """Makes backups of one namespace at one destination, which is held for writing."""

    def __init__(
        self,
        store: BackupStore,
        wall_ms: Callable[[], int],
        on_progress: OnProgress = lambda progress: None,
    ) -> None:
        self._store, self._wall_ms, self._on_progress = store, wall_ms, on_progress
        self.last: BackupManifest | None = None  # of this object, or that it found
        self.bytes_sent = 0  # of chunks and manifests, by all rounds
        self._known: set[int] = set()  # closed ledgers that are whole in ``last``, seen by this object
        self._sent = _Sent()
        self._floor_ms = 0  # a manifest is later than all that are there, whatever the clock says

    async def find_last(self) -> None:
        """Begin with what the destination has, by the newest manifest that can be read.

        A chunk that is gone is sent again, as long as the namespace has its ledger.
        """
        names = await self._store.names()
        self._floor_ms = names[-1].cut_ms + 1 if names else 0
        for name in reversed(names):
            try:
                found = await self._store.read(name)
            except BackupDamagedError as exc:
                logger.warning(
                    "%s: %s; the backup before it is used",
                    self._store.where,
                    exc,
                    extra=event("backup.damaged"),
                )
                continue
            there = await self._store.chunk_names()
            ledgers = {each: _held(each, copy, there) for each, copy in found.ledgers.items()}
            self.last = attrs.evolve(found, ledgers=ledgers)
            return

    async def run(self, source: BackupSource, *, whole: bool = True, always: bool = True) -> BackupManifest:
        """Make a backup of what the namespace has now; return its manifest, which is durable.

        If cancelled, the backups at the destination are as before, beside chunks that the next round writes
        again.

        Args:
            whole: False: the manifest may refer to an earlier one.
            always: False: write none if nothing has changed since the last one, which is returned.

        Raises:
            BackupError: A destination cannot be written, or has backups of logs that ``source`` leaves out.
                Or ledgers were deleted in each of many attempts.
            LogNotFoundError: A log of ``source`` does not exist, and no backup before had it.
            LogUnavailableError, LogMetadataError
            ledger.errors.LedgerError, ledger.metadata_store.errors.MetadataError: The caller translates them.
        """
        instance_id = await source.instance_id()
        self._check_selection(source)
        named_before: set[int] = set()
        for _ in range(ROUNDS_MAX):
            begun_ms = self._wall_ms()
            nodes = await source.nodes()
            self._check_logs(source, nodes)
            segments = {each.segment.ledger_id: each for each in segments_in(nodes.items())}
            named: dict[int, NamedSegment | None] = {**dict.fromkeys(blobs_in(nodes.items())), **segments}
            now = await self._ends(source, named)
            cut_ms = max(self._wall_ms(), self._floor_ms)
            gone = {each for each in named if now.get(each, _UNREAD) is None}
            if any(not _may_lack(named[each]) for each in gone - named_before):
                named_before |= gone  # still named by the next look: it is lost
                continue
            copies = await self._copies(source, now)
            if copies is None:
                continue
            lost = tuple(sorted(each for each in gone if not _may_lack(named[each])))
            manifest = BackupManifest(
                instance_id=instance_id,
                path=source.path,
                release=version("dlog-streams"),
                begun_ms=begun_ms,
                cut_ms=cut_ms,
                nodes=nodes,
                ledgers={each: copies[each] for each in named if each in copies},
                lost=lost,
                logs=source.logs,
            )
            if not always and self.last is not None and _same(manifest, self.last):
                return self.last
            size_bytes = await self._store.write(manifest, whole=whole)
            self.bytes_sent += size_bytes
            self.last, self._floor_ms = manifest, cut_ms + 1
            self._known = {each for each, copy in manifest.ledgers.items() if copy.is_closed}
            return manifest
        raise BackupError(
            f"ledgers were deleted during each of {ROUNDS_MAX} attempts to back them up; try again, or"
            " truncate and delete less at a time"
        )

    def _check_selection(self, source: BackupSource) -> None:
        """Refuse a selection that would drop logs from the destination: prune then deletes their chunks."""
        if self.last is None or source.logs is None:
            return
        before = self.last.logs
        left_out = ["all logs"] if before is None else sorted({*before} - {*source.logs})
        if left_out:
            raise BackupError(
                f"{self._store.where} has backups of {', '.join(left_out)}, and this one would leave"
                f" {'the others' if before is None else 'that'} out. Name another destination, or these logs"
                " as well"
            )

    def _check_logs(self, source: BackupSource, nodes: Mapping[str, bytes]) -> None:
        # A log that earlier backups have may be deleted: that ends no replication of the others.
        before = () if self.last is None else self.last.logs or ()
        known = {*map(log_of, nodes), *before}
        for log in source.logs or ():
            if log not in known:
                raise LogNotFoundError(log)

    async def _ends(
        self, source: BackupSource, named: Mapping[int, NamedSegment | None]
    ) -> dict[int, LedgerNow | None]:
        """The ledgers that may have grown, or are new; None for those that are gone."""
        wanted = [each for each in named if each not in self._known]
        ends: dict[int, LedgerNow | None] = {}

        async def look(ledger_id: int) -> None:
            ends[ledger_id] = await source.ledger(ledger_id)

        for start in range(0, len(wanted), ENDS_AT_ONCE):
            await for_each(look, wanted[start : start + ENDS_AT_ONCE])
        return ends

    async def _copies(
        self, source: BackupSource, now: dict[int, LedgerNow | None]
    ) -> dict[int, LedgerCopy] | None:
        """All ledgers of the backup; None if one was deleted meanwhile."""
        copies = {} if self.last is None else dict(self.last.ledgers)
        todo = []
        for ledger_id, ledger in now.items():
            if ledger is None:
                copies.pop(ledger_id, None)
                continue
            before = copies.get(ledger_id)
            if before is not None and before.identity != ledger.identity:
                before = None
            if before is None or before.last < ledger.last or before.is_closed != _closed(ledger):
                todo.append((ledger, before))
        self._sent = _Sent(ledgers_total=len(todo))
        limiter, is_gone = trio.CapacityLimiter(LEDGERS_AT_ONCE), False

        async def copy(work: tuple[LedgerNow, LedgerCopy | None]) -> None:
            nonlocal is_gone
            ledger, before = work
            async with limiter:
                if is_gone:
                    return
                copied = await self._copy(source, ledger, before)
                if copied is None:
                    is_gone = True
                    return
                copies[ledger.current.ledger_id] = copied
                self._sent.ledgers_done += 1
                self._report()

        await for_each(copy, todo)
        return None if is_gone else copies

    async def _copy(
        self, source: BackupSource, ledger: LedgerNow, before: LedgerCopy | None
    ) -> LedgerCopy | None:
        """The ledger after its new entries were written; None if it was deleted meanwhile."""
        ledger_id, metadata = ledger.current.ledger_id, ledger.current.metadata
        last = ledger.last
        if before is not None and not metadata.is_closed:
            last = max(last, before.last)  # bookies may know less of the end than those that replied before
        chunks = [] if before is None else [each for each in before.chunks if each.last <= last]
        missing = set() if before is None else {each for each in before.missing if each <= last}
        length_bytes = 0 if before is None else before.length_bytes
        entries = source.entries(ledger)
        first = chunks[-1].last + 1 if chunks else 0
        while first <= last:
            bodies, stop, lacked = await _read(entries, first, last)
            if lacked and await source.ledger(ledger_id) is None:
                return None  # not damaged: it was deleted
            missing |= lacked
            if bodies:
                length_bytes = length_of(bodies[-1])
            while stop > last and chunks and chunks[-1].size_bytes <= min(chunk_bytes(bodies), SEALED_BYTES):
                again = chunks[-1]
                sent, _, lacked = await _read(entries, again.first, again.last)
                if not lacked <= missing:
                    break  # the destination has what the namespace lost since
                first = chunks.pop().first
                bodies = [*sent, *bodies]
            chunk = await self._store.write_chunk(ledger_id, first, stop - 1, bodies)
            chunks.append(chunk)
            self.bytes_sent += chunk.size_bytes
            self._sent.entries += len(bodies)
            self._sent.bytes += chunk.size_bytes
            self._report()
            first = stop
        return LedgerCopy(
            identity=ledger.identity,
            metadata=encode_metadata(metadata),
            last=last,
            length_bytes=metadata.length_bytes if metadata.is_closed else length_bytes,
            is_closed=metadata.is_closed,
            missing=tuple(sorted(missing)),
            chunks=tuple(chunks),
        )

    def _report(self) -> None:
        sent = self._sent
        self._on_progress(
            BackupProgress(
                ledgers_done=sent.ledgers_done,
                ledgers_total=sent.ledgers_total,
                entries_sent=sent.entries,
                bytes_sent=sent.bytes,
            )
        )


_UNREAD = object()


async def _read(entries: EntrySource, first: int, last: int) -> tuple[list[bytes], int, set[int]]:
    """Entries for a chunk from ``first`` on: their stored bytes, the entry after them, the missing ones."""
    bodies: list[bytes] = []
    missing: set[int] = set()
    size_bytes, at = 0, first
    while at <= last and size_bytes < CHUNK_BYTES:
        found = await entries.read(at, last, CHUNK_BYTES - size_bytes)
        if not found:
            missing.add(at)
            at += 1
            continue
        bodies += found
        size_bytes += sum(map(len, found))
        at = entry_id_of(found[-1]) + 1
    return bodies, at, missing


def _held(ledger_id: int, copy: LedgerCopy, there: Collection[str]) -> LedgerCopy:
    """The copy up to the first chunk that is gone."""
    for place, chunk in enumerate(copy.chunks):
        if chunk.name(ledger_id) not in there:
            last = chunk.first - 1
            missing = tuple(each for each in copy.missing if each <= last)
            kept = copy.chunks[:place]
            return attrs.evolve(copy, last=last, is_closed=False, missing=missing, chunks=kept)
    return copy


def _closed(ledger: LedgerNow) -> bool:
    return ledger.current.metadata.is_closed


def _may_lack(named: NamedSegment | None) -> bool:
    """True if the ledger of a segment is deleted before its node, because it is truncated; not of a blob."""
    return named is not None and named.segment.truncation is TruncationStatus.TRUNCATED


def _same(manifest: BackupManifest, last: BackupManifest) -> bool:
    return _content(manifest) == _content(last)


def _content(manifest: BackupManifest) -> tuple[object, ...]:
    return manifest.nodes, manifest.ledgers, manifest.lost, manifest.logs
