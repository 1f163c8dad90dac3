"""Keeping an open ledger writable while its bookies fail: replace, try again, or give up.

Inside: the task that runs while something is wrong with one writer; its view of the metadata; back-off and
patience. Not inside: which entries to send again and when to confirm (``writer``), choosing (``placement``).
Always: one ensemble change at a time; between the first attempt to write it and the moment its outcome is
known nothing is confirmed; if the outcome cannot be learnt, the writer ends.

Source: LedgerHandle.java (ensembleChangeLoop); reference sections 5.5 to 5.7; lessons 1.1 rows 1, 5, 6.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import attrs
import trio

from ledger.catalog import Versioned
from ledger.cluster import Cluster
from ledger.continuity import Continuity
from ledger.ensemble_change import EnsembleChange, taken_over
from ledger.errors import (
    BookieError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    ReadOnlyRefusal,
    TooManyRequestsRefusal,
)
from ledger.metadata import LedgerMetadata
from ledger.metadata_update import update_metadata
from ledger.wire.messages import BookieInfoRequest
from ledger.writer import LedgerWriter, Outgoing
from namespace.errors import NamespaceError, SessionExpiredError

logger = logging.getLogger(__name__)

MakeError = Callable[[], LedgerError]


@attrs.define(eq=False)
class _Trouble:
    """How often a bookie was tried again, to wait longer each time."""

    attempts: int = 0
    failed_at: float = 0.0
    overloaded_since: float | None = None


class EnsembleRepair:
    """Looks after the failing bookies of one writer, and after what the metadata says meanwhile."""

    def __init__(
        self,
        writer: LedgerWriter,
        current: Versioned,
        cluster: Cluster,
        continuity: Continuity,
        *,
        send: Callable[[list[Outgoing]], None],
        progressed: Callable[[], None],
        look_at_connections: Callable[[], None],
        end: Callable[[MakeError], None],
    ) -> None:
        config = cluster.config
        self.current = current
        self.is_running = False
        self.is_verifying = False
        self._writer, self._continuity = writer, continuity
        self._placer = cluster.placer
        self._transport, self._catalog, self._membership = (
            cluster.transport,
            cluster.catalog,
            cluster.membership,
        )
        self._rng, self._config = cluster.rng, config
        self._send, self._progressed, self._end = send, progressed, end
        self._look_at_connections = look_at_connections
        # How long a failing bookie may take to say that it is there.
        self._probe_s = min(config.transport.request_timeout_s, config.unavailable_patience_s / 2 or 1.0)
        self._troubles: dict[str, _Trouble] = {}
        self._blocked_since: float | None = None
        self._changes = 0
        self._no_suspects_before = 0.0
        self._no_replacement: str | None = None
        self._is_over = False

    def noticed(self, bookie: str, cause: Exception) -> None:
        """A bookie of the ensemble began to fail; ``run`` must be running or be started."""
        now = trio.current_time()
        trouble = self._troubles.setdefault(bookie, _Trouble())
        if now - trouble.failed_at > 4 * self._config.retry_backoff_max_s:
            trouble.attempts = 0  # it was well for a while: begin anew
            trouble.overloaded_since = None
        trouble.failed_at = now
        if not isinstance(cause, TooManyRequestsRefusal):
            trouble.overloaded_since = None
        elif trouble.overloaded_since is None:
            trouble.overloaded_since = now
        self._membership.suspect(bookie)
        logger.warning(
            "ledger %d: %s (last confirmed entry %d)", self.current.ledger_id, cause, self._writer.lac
        )

    def unblocked(self) -> None:
        """The LAC grew: patience starts anew."""
        self._blocked_since = None

    def stop(self) -> None:
        """The writer is over: change and send nothing more."""
        self._is_over = True

    async def run(self) -> None:
        """Work until no bookie of the ensemble is failing, or the writer has ended."""
        self.is_running = True
        try:
            while self._writer.failures and not self._is_over:
                if not await self._replace() and not self._is_over:
                    await self._try_again()
        finally:
            self.is_running = False

    async def verify(self) -> None:
        """Let acknowledgements count that came over new connections, if the ledger is still ours."""
        self.is_verifying = True
        try:
            while (doubtful := self._writer.doubtful) and not self._is_over:
                try:
                    # An ordinary read may miss a recovery that has long begun.
                    found = await self._catalog.get_newest(self.current.ledger_id)
                except LedgerError as exc:
                    self._finish_with(exc, f"whether it is still this writer's cannot be told: {exc}")
                    return
                except NamespaceError as exc:
                    if self._patience_is_over():
                        self._finish_with(exc, "after a reconnection the metadata could not be read")
                        return
                    await trio.sleep(self._config.retry_backoff_max_s)
                    continue
                if not self._is_over:
                    self._look_at_connections()  # with deferred sync a loss ends the writer
                if self._is_over or self._ended_by(found.metadata):
                    return
                still = self._writer.doubtful
                for index, epoch in doubtful:
                    if (index, epoch) not in still:
                        continue  # its connection was lost meanwhile: look again
                    self._continuity.vouched(self._writer.ensemble[index])
                    if self._writer.trust(index, epoch):
                        self._progressed()
        finally:
            self.is_verifying = False

    async def follow_metadata(self) -> None:
        """End the writer as soon as the metadata says that somebody else took the ledger over.

        An idle writer sends nothing that a fenced bookie could refuse; and once its bookies have all been
        replaced, nobody would refuse it any more. (apache/bookkeeper#4812)
        """
        while not self._is_over:
            watch = trio.Event()
            try:
                found = await self._catalog.get(self.current.ledger_id, watch=watch)
            except LedgerError as exc:
                self._finish_with(exc, f"whether it is still this writer's cannot be told: {exc}")
                return
            except SessionExpiredError:
                return  # the next change of the metadata will fail, and say so
            except NamespaceError:
                await trio.sleep(self._config.retry_backoff_max_s)
                continue
            if self._is_over or self._ended_by(found.metadata):
                return
            await watch.wait()

    async def follow_places(self) -> None:
        """Judge anew which acknowledgements span enough fault domains whenever a bookie's place is learnt.

        Bookies that all answer but stand in too few places, as far as was known, are no failure: nothing else
        would ever look at those entries again.
        """
        while not self._is_over:
            self._look_at_connections()
            if not self._is_over and self._writer.judge_anew():
                self._progressed()
            await self._placer.wait_moved()

    async def _replace(self) -> bool:
        """Put spare bookies in the place of failing ones; False if there is none."""
        writer, metadata = self._writer, self.current.metadata
        failed = self._to_be_replaced()
        if not failed:
            return False
        replacements, self._no_replacement = await self._placer.choose_replacements(
            writer.ensemble,
            failed,
            metadata.write_quorum,
            metadata.ack_quorum,
            tried=self._tried(),
            is_pressed=self._is_pressed(),
        )
        if not replacements or self._is_over or not failed <= self._to_be_replaced():
            return False
        now = trio.current_time()
        if set(replacements.values()) <= set(self._membership.suspects):
            # Bookies that failed just now, in the place of others that did: not as fast as they fail.
            if now < self._no_suspects_before:
                return False
            self._no_suspects_before = now + self._config.retry_backoff_max_s
        self._changes += 1
        if (
            self._config.ensemble_changes_max is not None
            and self._changes > self._config.ensemble_changes_max
        ):
            cause = next(iter(writer.failures.values()))
            self._finish_with(
                cause, f"its ensemble was changed {self._changes - 1} times, which is the limit"
            )
            return True
        old = writer.ensemble
        connections = self._continuity.snapshot(replacements.values())
        change = EnsembleChange(
            writer.lac + 1, {old[index]: bookie for index, bookie in replacements.items()}
        )
        writer.begin_change()
        try:
            updated = await update_metadata(
                self._catalog, self.current, change.apply, patience_s=self._config.unavailable_patience_s
            )
            if self._is_over or self._ended_by(updated.metadata):
                return True
            change.check_found(updated.metadata)
        except NamespaceError as exc:
            # Whether the store took the change is unknown, so nothing may ever be confirmed again.
            self._finish_with(exc, f"the outcome of an ensemble change is unknown: {exc}")
            return True
        except LedgerError as exc:
            self._finish_with(exc, f"an ensemble change cannot be made: {exc}")
            return True
        self.current = updated
        new = updated.metadata.last_ensemble.bookies
        logger.warning(
            "ledger %d: from entry %d on %s instead of %s",
            self.current.ledger_id,
            change.first_entry_id,
            new,
            old,
        )
        self._continuity.begin(connections)
        self._send(writer.finish_change(new))
        if writer.advance():
            self._progressed()
        return True

    def _to_be_replaced(self) -> set[int]:
        """The failing indices that should not just be waited for."""
        writer, config = self._writer, self._config
        failures = dict(writer.failures)
        if config.delay_ensemble_change:
            read_only = any(isinstance(cause, ReadOnlyRefusal) for cause in failures.values())
            if not read_only and not writer.endangered:
                return set()
        # A bookie over capacity has lost nothing and will take the entry in a moment. To replace it would
        # send all that is pending to another one, and the load with it, until none is left below capacity.
        # One that has died since is no longer over capacity; and before the writer ends, another is tried.
        now = trio.current_time()
        patient_since = now if self._is_pressed() else now - config.overload_patience_s
        return {
            index
            for index, cause in failures.items()
            if not isinstance(cause, TooManyRequestsRefusal)
            or (overloaded_since := self._trouble(index).overloaded_since) is None
            or overloaded_since <= patient_since
        }

    async def _try_again(self) -> None:
        """Wait a little, then give failing bookies that answer again what they missed."""
        writer, config = self._writer, self._config
        if self._patience_is_over():
            reasons = [str(cause) for cause in writer.failures.values()]
            if self._no_replacement is not None:
                reasons.append(self._no_replacement)
            causes = "; ".join(reasons)
            self._finish_with(
                next(iter(writer.failures.values())),
                f"no ack quorum for entry {writer.lac + 1} in {config.unavailable_patience_s:g} s: {causes}",
            )
            return
        attempts = min(self._trouble(index).attempts for index in writer.failures)
        pause_s = min(config.retry_backoff_max_s, config.retry_backoff_min_s * 2 ** min(attempts, 20))
        pause_s *= 1 + self._rng.random() / 4
        if self._blocked_since is not None:
            # Somebody waits, or did. Try often, and a last time when patience ends; it may be over already.
            left_s = self._blocked_since + config.unavailable_patience_s - trio.current_time()
            pause_s = min(pause_s, config.unavailable_patience_s / 10)
            if left_s > 0:
                pause_s = min(pause_s, left_s)
        seen = set(writer.failures)
        with trio.move_on_after(pause_s):
            await self._membership.wait_change()
        if writer.failures.keys() - seen:
            # One that was tried again refuses again. Were it tried again at once, it and another one that
            # fails would never be seen to fail together, and nobody would say that entries wait for them.
            return
        async with trio.open_nursery() as nursery:
            for index in list(writer.failures):
                nursery.start_soon(self._revive_if_alive, index, writer.ensemble[index])

    async def _revive_if_alive(self, index: int, bookie: str) -> None:
        self._trouble(index).attempts += 1
        if not isinstance(self._writer.failures.get(index), ReadOnlyRefusal):
            # Ask first: frames sent to a bookie that does not answer would fill the window of bytes in
            # flight until its connection times out, and stop a writer that has its quorum without it.
            try:
                await self._transport.call(bookie, BookieInfoRequest(), timeout_s=self._probe_s)
            except BookieError as exc:
                if index in self._writer.failures and self._writer.ensemble[index] == bookie:
                    self._writer.failures[index] = exc
                return
        if not self._is_over and index in self._writer.failures and self._writer.ensemble[index] == bookie:
            run = self._writer.revive(index)
            if run is not None:
                self._send([run])

    def _trouble(self, index: int) -> _Trouble:
        return self._troubles.setdefault(self._writer.ensemble[index], _Trouble())

    def _tried(self) -> list[str]:
        """Bookies that failed this writer lately, the last one last."""
        suspects, troubles = self._membership.suspects, self._troubles
        return sorted(
            troubles.keys() & set(suspects), key=lambda bookie: (troubles[bookie].failed_at, bookie)
        )

    def _is_pressed(self) -> bool:
        """Half of the patience is over: whoever would better be left alone is taken now."""
        since, patience_s = self._blocked_since, self._config.unavailable_patience_s
        return self._writer.blocked and since is not None and trio.current_time() - since >= patience_s / 2

    def _patience_is_over(self) -> bool:
        if not self._writer.pending_count:
            self._blocked_since = None
        if not self._writer.blocked:
            # Perhaps only until the bookie that was taken in just now turns out to be dead as well: only
            # progress (``unblocked``) begins patience anew. Else a writer that goes from one dead bookie to
            # the next would never give up.
            return False
        now = trio.current_time()
        if self._blocked_since is None:
            self._blocked_since = now
        return now - self._blocked_since >= self._config.unavailable_patience_s

    def _ended_by(self, metadata: LedgerMetadata) -> bool:
        ledger_id, evidence = self.current.ledger_id, taken_over(metadata)
        if evidence is None:
            return False
        self._finish(lambda: LedgerFencedError(ledger_id, evidence))
        return True

    def _finish_with(self, cause: Exception, message: str) -> None:
        ledger_id = self.current.ledger_id

        def make() -> LedgerError:
            error = LedgerWriteError(ledger_id, message)
            error.__cause__ = cause
            return error

        self._finish(make)

    def _finish(self, make: MakeError) -> None:
        self._is_over = True
        self._end(make)
