"""Questions about the logs of a namespace: names, segments, ends, counts, verification.

Inside: the calls that read metadata, and records where metadata do not say. Not inside: readers
(``log_reader``).
Always: nothing is changed; each call may be cancelled at any time.

Source: DistributedLog, BKDistributedLogNamespace.java, BKDistributedLogManager.java.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from dlog.description import EntryTotals, LogDescription, SegmentDescription
from dlog.errors import LogNotFoundError, translated
from dlog.format.record import TXID_MAX
from dlog.operations.namespace_base import NamespaceBase, at_target, waits_for_store
from dlog.read.entry_verifier import EntryVerification, verify_entries
from dlog.read.verifier import LogVerification, verify_log
from dlog.write.opening import lock_owner
from ledger.metadata_store.errors import NoNodeError
from namespace import logs, paths
from namespace.dlsn import DLSN
from namespace.federated_store import FederatedStore
from namespace.log_identity import log_id_in
from namespace.policy import Right
from namespace.segments.truncation import first_left


class LogQueries(NamespaceBase):
    """The calls of ``Namespace`` that answer questions about logs."""

    @waits_for_store
    async def list_logs(self, prefix: str = "", *, pattern: str | None = None) -> list[str]:
        """The names of the logs, sorted; with a prefix, of those below it (``shop``: ``shop/orders``).

        If the namespace has a policy, only logs that this program may read are listed.

        Args:
            pattern: Only names that match it as a whole, prefix included: ``*`` stands for any characters,
                ``/`` too, ``?`` for one, ``[ab]`` for one of these. In a policy only ``*`` is special.
        """
        self._check_open()
        with translated(None, "listing logs"):
            names = await self._permissions.readable(await logs.list_logs(self._store, self._path, prefix))
        return names if pattern is None else [name for name in names if fnmatchcase(name, pattern)]

    @at_target
    @waits_for_store
    async def log_location(self, name: str) -> str:
        """The path of the namespace that holds a log: in a federated namespace that of a sub-namespace.

        Raises:
            LogNotFoundError
            LogMetadataError: Two sub-namespaces hold it.
        """
        name = await self._permitted(name, Right.READ)
        with translated(name, "looking for it"):
            if not await logs.log_exists(self._store, self._path, name):
                raise LogNotFoundError(name)
            place = await self._store.locate(name) if isinstance(self._store, FederatedStore) else None
            return place or self._path

    @waits_for_store
    async def log_exists(self, name: str) -> bool:
        """True if the log exists now; also of a log that was promoted from here.

        Raises:
            AccessDeniedError: The policy gives this program no right on a log of this name.
        """
        name = self._checked(name)
        with translated(name, "reading the policy"):
            await self._permissions.check(name, Right.READ)
        with translated(name, "looking for it"):
            return await logs.log_exists(self._store, self._path, name)

    @at_target
    @waits_for_store
    async def segments(self, name: str) -> list[SegmentDescription]:
        """The log's segments, oldest first.

        Raises:
            LogNotFoundError, LogMetadataError
        """
        await self._permitted(name, Right.READ)
        return [SegmentDescription.of(each) for each in await self._read_only_log(name).segments()]

    @at_target
    @waits_for_store
    async def last_dlsn(self, name: str) -> DLSN | None:
        """The position of the last record that a reader sees now; None if there is none.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self._read_only_log(await self._permitted(name, Right.READ))
        record = await log.last_record(await log.segments())
        return None if record is None else record.dlsn

    @waits_for_store
    async def log_identity(self, name: str) -> str | None:
        """A number that no other log has, also none that gets the name later; it moves with the log.

        A log that is promoted keeps it for those who open it here, and has another one at its target.

        None: Apache's programs or an older release created the log, and no writer of this release has opened
        it.

        Raises:
            LogNotFoundError
        """
        name = self._checked(name)
        with translated(name, "reading the policy"):
            await self._permissions.check(name, Right.READ)
        with translated(name, "reading its identity"):
            try:
                node = await self._store.get(paths.log_root_path(self._path, name))
            except NoNodeError:
                raise LogNotFoundError(name) from None
            return log_id_in(node.value)

    @at_target
    async def verify_log(self, name: str, *, expect_head: str | None = None) -> LogVerification:
        """Read a whole log and check its digests, positions, transaction ids, metadata and hash chain.

        The result names the first problem. It changes nothing, and may be cancelled at any time.

        Args:
            expect_head: The ``head`` of an earlier check: the log must still hold the chain up to it.

        Raises:
            ValueError: ``expect_head`` is no head.
            LogNotFoundError, LogMetadataError, LogUnavailableError
        """
        log = self._read_only_log(await self._permitted(name, Right.READ))
        return await verify_log(log, expect_head)

    @at_target
    async def verify_entries(
        self, name: str, segment_seqno: int, *, first_entry_id: int = 0, last_entry_id: int | None = None
    ) -> EntryVerification:
        """Read entries of a segment from every bookie that should have them, and check all of it.

        It checks the digest of each replica, that replicas are equal, the positions and transaction ids of
        the records, and, if the range has the last entry, the metadata of the segment. So several processes
        may check the parts of a log. It changes nothing, and may be cancelled at any time.

        Args:
            last_entry_id: Inclusive. None: the last entry; of a segment in progress the last confirmed
                one.

        Raises:
            LogNotFoundError
            LogMetadataError: The log has no such segment, or its metadata do not parse.
            LogUnavailableError: The metadata store is out of reach, or the end of a segment in progress
                cannot be found. A bookie that is out of reach is a fault in the result.
        """
        if first_entry_id < 0:
            raise ValueError(f"entry {first_entry_id}: the first entry is 0")
        log = self._read_only_log(await self._permitted(name, Right.READ))
        return await verify_entries(log, segment_seqno, first_entry_id, last_entry_id)

    @at_target
    @waits_for_store
    async def describe_log(self, name: str) -> LogDescription:
        """A log's segments, ends, number of records and writer, found without reading all of it.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self._read_only_log(await self._permitted(name, Right.READ))
        segments = await log.segments()
        last = await log.last_record(segments)
        count = sum(segment.record_count for segment in segments)
        if last is not None:
            # Count the visible records of segments in progress: the last one has its number in the segment.
            newest = next(each for each in segments if each.segment_seqno == last.dlsn.segment_seqno)
            if newest.in_progress:
                count += last.sequence_id
                older = [each for each in segments if each.segment_seqno < newest.segment_seqno]
                if older and older[-1].in_progress:
                    count += await log.visible_count(older[-1])
        with translated(name, "looking for its writer"):
            writer = await lock_owner(self._store, self._path, log.name)
        return LogDescription(
            name=log.name,
            first_dlsn=first_left(segments),
            last_dlsn=None if last is None else last.dlsn,
            last_txid=None if last is None else last.txid,
            record_count=count,
            is_sealed=any(each.last_txid == TXID_MAX for each in segments),
            writer=writer,
            segments=tuple(SegmentDescription.of(each) for each in segments),
        )

    @at_target
    @waits_for_store
    async def count_records(self, name: str, *, start: DLSN | None = None, end: DLSN | None = None) -> int:
        """The number of records visible now, between two positions or in the whole log.

        Truncated records count until their segments are deleted. At most two segments are read, in part.

        Args:
            start: The first record that counts; None: from the first one on.
            end: Records at or after it do not count, so the counts of adjoining ranges add up; None: all
                that are visible.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self._read_only_log(await self._permitted(name, Right.READ))
        return await log.count_from(await log.segments(), DLSN(0, 0, 0) if start is None else start, end)

    @at_target
    @waits_for_store
    async def entry_totals(self, name: str, entries: Iterable[tuple[int, int]]) -> list[EntryTotals | None]:
        """The records and bytes of a segment up to and including an entry, by reading that entry alone.

        So the size of a range of positions is known without reading the range.

        Args:
            entries: Log segment sequence numbers and entry ids.

        Returns:
            The totals in the order of ``entries``; None for an entry that is not there or not confirmed yet.

        Raises:
            LogNotFoundError, LogMetadataError, CorruptLogError
        """
        log = self._read_only_log(await self._permitted(name, Right.READ))
        return await log.entry_totals(await log.segments(), list(entries))
