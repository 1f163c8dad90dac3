"""Reading all that is at a destination, and comparing it with what the manifests say.

Inside: the checks. Not inside: mending: a chunk that is deleted is sent again by the next backup, as long as
the namespace has its ledger.
Always: nothing is written; the check continues after what is damaged.

Source: our own; docs/backup.md.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dlog.backup.content import NamedSegment, blobs_in, segments_in
from dlog.backup.errors import BackupDamagedError
from dlog.backup.format import BackupManifest, EntryChunk, LedgerCopy, entry_id_of
from dlog.backup.store import BackupStore
from dlog.errors import CorruptLogError, EntryFormatError, LogMetadataError
from dlog.read.segment_reader import SegmentReader
from ledger.catalog.metadata_codec import decode_metadata
from ledger.digest import EntryCodec
from ledger.errors import CorruptEntryError, LedgerMetadataError, MetadataFormatError
from namespace.segments.segment import TruncationStatus


@attrs.frozen(kw_only=True)
class BackupProblem:
    """Something at a destination that is damaged or missing."""

    object_name: str
    log: str | None  # that it belongs to, as far as known
    evidence: str


@attrs.frozen(kw_only=True)
class BackupVerification:
    """The result of reading all backups of a destination."""

    backups: int
    chunks: int
    entries: int
    size_bytes: int  # of the chunks
    problems: tuple[BackupProblem, ...]

    @property
    def is_sound(self) -> bool:
        """True if every backup can be restored."""
        return not self.problems


@attrs.frozen
class _Held:
    """A ledger as the newest manifest has it that names its chunks."""

    copy: LedgerCopy
    named: NamedSegment | None


class BackupVerifier:
    """Reads all backups of one destination once."""

    def __init__(self, store: BackupStore, on_progress: Callable[[int, int], None]) -> None:
        """``on_progress``: called with the bytes of the chunks read so far, and of all."""
        self._store, self._on_progress = store, on_progress
        self._problems: list[BackupProblem] = []
        self._chunks: dict[str, tuple[int, EntryChunk, _Held]] = {}  # by name
        self._newest: dict[tuple[int, str], _Held] = {}  # by id and identity
        self._entries = self._seen = self._done = self._total = 0

    async def run(self) -> BackupVerification:
        """Read everything. Raises only errors of a destination that cannot be read."""
        names = await self._store.names()
        for name in names:
            try:
                self._take(name.text, await self._store.read(name))
            except BackupDamagedError as exc:
                self._add(name.text, None, str(exc))
        self._total = sum(chunk.size_bytes for _, chunk, _ in self._chunks.values())
        for (ledger_id, _), held in sorted(self._newest.items(), key=lambda item: item[0][0]):
            await self._read_through(ledger_id, held)
        for ledger_id, chunk, held in list(self._chunks.values()):  # of older manifests only
            await self._read(ledger_id, chunk, held)
        return BackupVerification(
            backups=len(names),
            chunks=self._seen,
            entries=self._entries,
            size_bytes=self._total,
            problems=tuple(self._problems),
        )

    def _take(self, name: str, manifest: BackupManifest) -> None:
        """Note what a manifest needs, and whether it has the ledgers of its segments."""
        try:
            segments, blobs = segments_in(manifest.nodes.items()), blobs_in(manifest.nodes.items())
        except LogMetadataError as exc:
            self._add(name, None, f"a node does not parse: {exc}")
            return
        for ledger_id, path in blobs.items():
            if ledger_id not in manifest.ledgers and ledger_id not in manifest.lost:
                self._add(name, None, f"it has no ledger {ledger_id}, which {path} names")
        named = {each.segment.ledger_id: each for each in segments}
        for ledger_id, segment in named.items():
            copy = manifest.ledgers.get(ledger_id)
            if copy is None:
                if (
                    ledger_id not in manifest.lost
                    and segment.segment.truncation is not TruncationStatus.TRUNCATED
                ):
                    self._add(name, segment.log, f"it has no ledger {ledger_id}, which a segment names")
            elif not segment.segment.in_progress and copy.last < segment.segment.last_entry_id:
                self._add(
                    name,
                    segment.log,
                    f"segment {segment.segment.segment_seqno} ends at entry {segment.segment.last_entry_id},"
                    f" and its ledger {ledger_id} at {copy.last}",
                )
        for ledger_id, copy in manifest.ledgers.items():
            held = _Held(copy, named.get(ledger_id))
            self._newest[ledger_id, copy.identity] = held
            for chunk in copy.chunks:
                self._chunks[chunk.name(ledger_id)] = ledger_id, chunk, held

    async def _read_through(self, ledger_id: int, held: _Held) -> None:
        """Read a ledger from its first entry to its last, and decode its records."""
        named = held.named
        reader = None
        if named is not None and not held.copy.missing:
            segment = named.segment
            reader = SegmentReader(segment.segment_seqno, 1, enveloped=segment.enveloped)
            reader.confirmed(held.copy.last, closed=False)
        for chunk in held.copy.chunks:
            payloads = await self._read(ledger_id, chunk, held)
            if payloads is None:
                reader = None  # what follows has no beginning
            if reader is None or payloads is None:
                continue
            try:
                reader.decode_all(payloads)
            except (EntryFormatError, CorruptLogError) as exc:
                self._add(
                    chunk.name(ledger_id), named.log if named else None, f"a record does not decode: {exc}"
                )
                reader = None

    async def _read(self, ledger_id: int, chunk: EntryChunk, held: _Held) -> list[bytes] | None:
        """The payloads of a chunk; None if it is damaged, or they are not known."""
        name = chunk.name(ledger_id)
        self._chunks.pop(name, None)
        self._seen += 1
        log = None if held.named is None else held.named.log
        try:
            metadata = decode_metadata(held.copy.metadata)
            codec = EntryCodec(metadata.digest_type, metadata.password or b"")
            bodies = await self._store.read_chunk(ledger_id, chunk)
            there = {entry_id_of(body) for body in bodies}
            lacked = [
                each
                for each in range(chunk.first, chunk.last + 1)
                if each not in there and each not in held.copy.missing
            ]
            if lacked:
                raise BackupDamagedError(name, f"entry {lacked[0]} is not in it")
            payloads = None  # metadata of the oldest form do not say which digest the entries have
            if metadata.password is not None:
                payloads = [codec.unpack(body, ledger_id, entry_id_of(body)).payload for body in bodies]
        except BackupDamagedError as exc:
            self._add(name, log, str(exc))
            return None
        except (CorruptEntryError, MetadataFormatError, LedgerMetadataError) as exc:
            self._add(name, log, f"ledger {ledger_id}: {exc}")
            return None
        self._entries += len(bodies)
        self._done += chunk.size_bytes
        self._on_progress(self._done, self._total)
        return payloads

    def _add(self, name: str, log: str | None, evidence: str) -> None:
        self._problems.append(BackupProblem(object_name=name, log=log, evidence=evidence))
