"""Keeping an open ledger writable while its bookies fail: a machine that replaces, tries again, or gives up.

Methods take events and return actions; the caller performs the actions in their order and reports the outcome
of each step. The machine sits on a ``LedgerWriter`` and moves its state (``ensemble_state`` has the table):

    event                    state before  actions
    -----------------------  ------------  ------------------------------------------------------------
    on_bookie_failed         any           Suspect, Warn; if HEALTHY: BeginRepair; deferred sync: End
    on_repair_due            DEGRADED      ChooseReplacements, Wait or End
    on_replacements_chosen   CHOOSING      WriteChange, Wait or End
    on_ensemble_changed      CHANGING      Adopt, Warn, SendAdds, Confirm, and the next step; or End
    on_change_failed         CHANGING      End
    on_waited                WAITING       Probe for each failing bookie, or the next step
    on_probe_answered        PROBING       SendAdds; after the last probe the next step
    check_connections        any           SendAdds, or as on_bookie_failed; deferred sync: End
    on_replies_held          any           ReadMetadata
    on_metadata_read         any           SendAdds, Confirm, ReadMetadata or End
    on_metadata_read_failed  any           ReadMetadata or End
    on_metadata_seen         any           End, if another client took the ledger over
    on_metadata_unreadable   any           End
    on_locations_changed     any           SendAdds, Confirm
    on_unsynced_lost         any           End
    stop                     any           none

Inside: the order of steps, the limits and pauses, which connections are trusted, the reasons to end.
Not inside: awaiting a step (``repair_steps``), the entries to send again and when to confirm (``writer``),
the choice of bookies (``placement``).
Always: at most one step of a repair is under way; between the first attempt to write an ensemble change and
the moment its outcome is known nothing is confirmed; if the outcome cannot be learnt, the writer ends; after
the end no event has an effect.

Source: LedgerHandle.java (ensembleChangeLoop); docs/protocol.md 5.5 to 5.7; docs/known-bugs.md 1, 5, 6.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import attrs

from ledger.config import ClientConfig
from ledger.errors import (
    BookieUnavailableError,
    ClientRefusedError,
    LedgerError,
    LedgerFencedError,
    LedgerWriteError,
    ReadOnlyRefusal,
    TooManyRequestsRefusal,
    is_refusal,
)
from ledger.metadata import LedgerMetadata
from ledger.metadata_store.errors import MetadataError
from ledger.write.actions import (
    Action,
    Adopt,
    BeginRepair,
    ChooseReplacements,
    Confirm,
    End,
    MakeError,
    Probe,
    ReadMetadata,
    Suspect,
    Wait,
    Warn,
    WriteChange,
)
from ledger.write.connection_trust import ConnectionTrust
from ledger.write.ensemble_change import EnsembleChange, taken_over
from ledger.write.ensemble_state import EnsembleEvent, EnsembleState
from ledger.write.writer import LedgerWriter, SendAdds

if TYPE_CHECKING:
    from ledger.catalog.catalog import Versioned
    from ledger.write.deferred_sync import Durable


@attrs.define(eq=False)
class _FailureHistory:
    """The failures of one bookie, for longer and longer pauses."""

    attempts: int = 0
    failed_at: float = 0.0
    overloaded_since: float | None = None


class EnsembleRepair:
    """Decides the steps after failing bookies, lost connections and changed metadata of one writer."""

    def __init__(
        self,
        ledger_id: int,
        writer: LedgerWriter,
        connections: ConnectionTrust,
        config: ClientConfig,
        rng: random.Random,
        *,
        durable: Durable | None = None,
    ) -> None:
        """Nothing is failing yet.

        Args:
            rng: For the length of pauses.
            durable: With deferred sync, the entries that are synced. Then any failure ends the writer.
        """
        self._ledger_id = ledger_id
        self._writer, self._connections, self._durable = writer, connections, durable
        self._config, self._rng = config, rng
        # How long a failing bookie may take to answer a probe.
        self._probe_s = min(config.transport.request_timeout_s, config.unavailable_timeout_s / 2 or 1.0)
        self._probes_unanswered = 0
        self._histories: dict[str, _FailureHistory] = {}
        self._acks_lost_at: dict[str, float] = {}  # by bookie, with its connection
        self._blocked_since: float | None = None
        self._blocked_at = writer.lac  # the LAC when _blocked_since was set or cleared
        self._changes = 0
        self._no_suspects_before = 0.0
        self._no_replacement: str | None = None
        # The bookies that the metadata read under way can vouch for, with the generation of each; None if
        # there is no read under way. Such a read runs beside a repair, so it is no state of the ensemble.
        self._read_for: list[tuple[int, int]] | None = None

    @property
    def is_over(self) -> bool:
        """True after the end: no event has an effect any more."""
        return self._writer.state is EnsembleState.OVER

    def stop(self) -> None:
        """The writer is over: change and send nothing more."""
        self._writer.move(EnsembleEvent.END)

    # --- a repair, step by step -----------------------------------------------------------------------------

    def on_bookie_failed(self, bookie: str, cause: Exception, *, lost: bool, now_s: float) -> list[Action]:
        """A bookie refused an entry, or (``lost``) its connection broke."""
        if self._durable is not None:
            # Another bookie could take the pending entries, but not those that this one acknowledged.
            return self.on_unsynced_lost(cause)
        was_healthy = self._writer.state is EnsembleState.HEALTHY
        if not self._writer.failed(bookie, cause, lost=lost):
            return []
        self._note_failure(bookie, cause, now_s)
        actions: list[Action] = [Suspect(bookie), Warn(f"{cause} (last confirmed entry {self._writer.lac})")]
        return [*actions, BeginRepair()] if was_healthy else actions

    def on_repair_due(self, now_s: float) -> list[Action]:
        """The moment that ``BeginRepair`` asks for has come."""
        return [] if self.is_over else self._next_step(now_s)

    def on_replacements_chosen(
        self,
        step: ChooseReplacements,
        replacements: Mapping[int, str],
        no_replacement: str | None,
        suspects: Collection[str],
        now_s: float,
    ) -> list[Action]:
        """The placement policy chose these bookies by index.

        Args:
            no_replacement: Why it did not replace all.
            suspects: Bookies that failed this client lately.
        """
        if self.is_over:
            return []
        self._no_replacement = no_replacement
        if not replacements and (refusals := self._refusals()):
            return self._end(lambda: ClientRefusedError(self._ledger_id, refusals))
        if not replacements or not step.failed <= self._to_be_replaced(now_s):
            return self._wait(now_s)
        if set(replacements.values()) <= set(suspects):
            # These bookies failed a moment ago, and would replace others that did. Without this pause the
            # changes would follow each other as fast as bookies fail.
            if now_s < self._no_suspects_before:
                return self._wait(now_s)
            self._no_suspects_before = now_s + self._config.retry_backoff_max_s
        writer = self._writer
        self._changes += 1
        changes_max = self._config.ensemble_changes_max
        if changes_max is not None and self._changes > changes_max:
            cause = next(iter(writer.failures.values()))
            return self._end_by(
                cause, f"its ensemble was changed {self._changes - 1} times, which is the limit"
            )
        change = EnsembleChange(
            writer.lac + 1, {writer.ensemble[index]: bookie for index, bookie in replacements.items()}
        )
        writer.begin_change()
        return [WriteChange(change, self._connections.snapshot(replacements.values()))]

    def on_ensemble_changed(self, step: WriteChange, current: Versioned, now_s: float) -> list[Action]:
        """The metadata store answered the change; ``current`` is its present content."""
        if self.is_over:
            return []
        evidence = taken_over(current.metadata)
        if evidence is not None:
            return self._end(lambda: LedgerFencedError(self._ledger_id, evidence))
        try:
            step.change.check_found(current.metadata)
        except LedgerError as exc:
            return self.on_change_failed(exc)
        writer, old = self._writer, self._writer.ensemble
        new = current.metadata.last_ensemble.bookies
        self._connections.trust_since(step.connections)
        return [
            Adopt(current),
            Warn(f"from entry {step.change.first_entry_id} on {new} instead of {old}"),
            *writer.finish_change(new),
            *_confirm(writer.advance()),
            *self._next_step(now_s),
        ]

    def on_change_failed(self, exc: LedgerError | MetadataError) -> list[Action]:
        """The change could not be written, or whether it was written is unknown."""
        if isinstance(exc, MetadataError):
            # Whether the store took the change is unknown, so nothing may ever be confirmed again.
            return self._end_by(exc, f"the outcome of an ensemble change is unknown: {exc}")
        return self._end_by(exc, f"an ensemble change cannot be made: {exc}")

    def on_waited(self, step: Wait, now_s: float) -> list[Action]:
        """The pause is over, or the list of bookies changed."""
        if self.is_over:
            return []
        writer = self._writer
        if writer.failures.keys() != step.failing:
            # A bookie that was tried again refuses again. If the writer tried it again at once, it would
            # never see this bookie and another failing one fail together, and would never report that entries
            # wait for both.
            return self._look_again(now_s)
        writer.move(EnsembleEvent.PROBE)
        actions: list[Action] = []
        for index, cause in list(writer.failures.items()):
            self._history(index).attempts += 1
            if isinstance(cause, ReadOnlyRefusal):
                actions += _send(writer.revive(index))  # it is alive: it answered
            else:
                # Probe first. Frames sent to a bookie that does not answer would fill the window of bytes in
                # flight until its connection times out, and stop a writer that has its quorum without it.
                self._probes_unanswered += 1
                actions.append(Probe(index, writer.ensemble[index], self._probe_s))
        if not self._probes_unanswered:
            actions += self._look_again(now_s)
        return actions

    def on_probe_answered(self, step: Probe, error: Exception | None, now_s: float) -> list[Action]:
        """The bookie answered, or not (``error``)."""
        self._probes_unanswered -= 1
        if self.is_over:
            return []
        writer = self._writer
        actions: list[Action] = []
        if step.index in writer.failures and writer.ensemble[step.index] == step.bookie:
            if error is not None:
                writer.failures[step.index] = error
            else:
                actions += _send(writer.revive(step.index))
        if not self._probes_unanswered:
            actions += self._look_again(now_s)
        return actions

    def _look_again(self, now_s: float) -> list[Action]:
        self._writer.move(EnsembleEvent.LOOK_AGAIN)
        return self._next_step(now_s)

    def _next_step(self, now_s: float) -> list[Action]:
        writer = self._writer
        if not writer.failures:
            writer.move(EnsembleEvent.HEAL)
            return []
        failed = self._to_be_replaced(now_s)
        if not failed:
            return self._wait(now_s)
        writer.move(EnsembleEvent.CHOOSE)
        urgent = self._is_urgent(now_s) or bool(self._refusals())
        return [ChooseReplacements(writer.ensemble, frozenset(failed), self._tried(), urgent)]

    def _wait(self, now_s: float) -> list[Action]:
        """Try failing bookies again after a pause; or end, if the retry timeout is over."""
        writer, config = self._writer, self._config
        if self._retry_timeout_is_over(now_s):
            reasons = [str(cause) for cause in writer.failures.values()]
            if self._no_replacement is not None:
                reasons.append(self._no_replacement)
            causes = "; ".join(reasons)
            return self._end_by(
                next(iter(writer.failures.values())),
                f"no ack quorum for entry {writer.lac + 1} in {config.unavailable_timeout_s:g} s: {causes}",
            )
        attempts = min(self._history(index).attempts for index in writer.failures)
        pause_s = min(config.retry_backoff_max_s, config.retry_backoff_min_s * 2 ** min(attempts, 20))
        pause_s *= 1 + self._rng.random() / 4
        if self._blocked_since is not None:
            # An entry is blocked, or was. Try often, and a last time when the retry timeout ends; it may be
            # over already.
            left_s = self._blocked_since + config.unavailable_timeout_s - now_s
            pause_s = min(pause_s, config.unavailable_timeout_s / 10)
            if left_s > 0:
                pause_s = min(pause_s, left_s)
        writer.move(EnsembleEvent.WAIT)
        return [Wait(pause_s, frozenset(writer.failures))]

    # --- connections and metadata ---------------------------------------------------------------------------

    def check_connections(self, losses: int, now_s: float, bookie: str | None = None) -> list[Action]:
        """Notice lost connections, and that ``bookie`` answers over a new one.

        Args:
            losses: How many connections the transport has lost so far.
        """
        if self.is_over:
            return []
        lost = self._connections.take_lost(losses)
        if lost and self._durable is not None and self._writer.last_pushed > self._durable.lac:
            return self.on_unsynced_lost(BookieUnavailableError(lost[0], "the connection was lost"))
        if bookie is not None and self._connections.is_first_reply(bookie):
            lost.append(bookie)
        actions: list[Action] = []
        for name in lost:
            adds = self._writer.reconnected(name)
            if adds is None:
                continue
            lost_before_s = self._acks_lost_at.get(name, -math.inf)
            self._acks_lost_at[name] = now_s
            if now_s - lost_before_s < self._config.retry_backoff_max_s:
                # It acknowledges entries and then breaks the connection or the protocol. Without the pauses
                # of a repair the writer would connect and send again as fast as the bookie answers.
                cause = BookieUnavailableError(name, "its connection was lost twice after acknowledgements")
                actions += self.on_bookie_failed(name, cause, lost=True, now_s=now_s)
            else:
                actions.append(adds)
        return actions

    def on_replies_held(self) -> list[Action]:
        """Acknowledgements came over new connections: the metadata decide whether they count."""
        if self._read_for is not None or self.is_over:
            return []
        return self._read_metadata(0.0)

    def on_metadata_read(self, metadata: LedgerMetadata, losses: int, now_s: float) -> list[Action]:
        """The store's newest metadata came, as ``ReadMetadata`` asked."""
        vouched, self._read_for = self._read_for or [], None
        actions = self.check_connections(losses, now_s)  # with deferred sync a loss ends the writer
        if self.is_over:
            return actions
        if end := self.on_metadata_seen(metadata):
            return actions + end
        for index, generation in vouched:
            if (index, generation) not in self._writer.untrusted:
                continue  # its connection was lost during the read: read again
            self._connections.trust(self._writer.ensemble[index])
            actions += _confirm(self._writer.trust(index, generation))
        return actions + self._read_metadata(0.0)

    def on_metadata_read_failed(self, exc: LedgerError | MetadataError, now_s: float) -> list[Action]:
        """The metadata could not be read, as ``ReadMetadata`` asked."""
        self._read_for = None
        if self.is_over:
            return []
        if isinstance(exc, LedgerError):
            return self.on_metadata_unreadable(exc)
        if self._retry_timeout_is_over(now_s):
            return self._end_by(exc, "after a reconnection the metadata could not be read")
        return self._read_metadata(self._config.retry_backoff_max_s)

    def on_metadata_seen(self, metadata: LedgerMetadata) -> list[Action]:
        """The ledger's metadata, as some read found them."""
        evidence = taken_over(metadata)
        if evidence is None:
            return []
        return self._end(lambda: LedgerFencedError(self._ledger_id, evidence))

    def on_metadata_unreadable(self, exc: LedgerError) -> list[Action]:
        """The metadata are gone, or do not parse."""
        return self._end_by(exc, f"its metadata cannot be read, so it may have been taken over: {exc}")

    def on_locations_changed(self, losses: int, now_s: float) -> list[Action]:
        """A bookie's location became known, or changed: acknowledgements may span enough fault domains now.

        Bookies that all answer, but share a fault domain as far as was known, are no failure. Without this
        event no other event would ever look at their entries again.
        """
        actions = self.check_connections(losses, now_s)
        return actions if self.is_over else actions + _confirm(self._writer.reevaluate())

    def on_unsynced_lost(self, cause: Exception) -> list[Action]:
        """With deferred sync: a bookie may have lost entries that it acknowledged and has not synced."""
        assert self._durable is not None  # only a writer with deferred sync gets here
        message = f"entries after {self._durable.lac} are not synced and may be lost: {cause}"
        return self._end(lambda: LedgerWriteError(self._ledger_id, message))

    def _read_metadata(self, pause_s: float) -> list[Action]:
        untrusted = self._writer.untrusted
        if not untrusted:
            return []
        self._read_for = untrusted
        return [ReadMetadata(pause_s)]

    # --- knowledge of failing bookies -----------------------------------------------------------------------

    def _note_failure(self, bookie: str, cause: Exception, now_s: float) -> None:
        history = self._histories.setdefault(bookie, _FailureHistory())
        if now_s - history.failed_at > 4 * self._config.retry_backoff_max_s:
            history.attempts = 0  # it was well for a while: short pauses again
            history.overloaded_since = None
        history.failed_at = now_s
        if not isinstance(cause, TooManyRequestsRefusal):
            history.overloaded_since = None
        elif history.overloaded_since is None:
            history.overloaded_since = now_s

    def _to_be_replaced(self, now_s: float) -> set[int]:
        """The failing indices that the writer should not just wait for."""
        writer, config = self._writer, self._config
        failures = dict(writer.failures)
        if config.delay_ensemble_change:
            read_only = any(isinstance(cause, ReadOnlyRefusal) for cause in failures.values())
            if not read_only and not writer.endangered:
                return set()
        # A bookie over capacity has lost nothing and will take the entry in a moment. To replace it would
        # send all pending entries to another one, and the load with them, until none is left below capacity.
        # A bookie that has died since is no longer over capacity. Before the writer ends, another is tried.
        overloaded_before = now_s if self._is_urgent(now_s) else now_s - config.overload_timeout_s
        return {
            index
            for index, cause in failures.items()
            if not isinstance(cause, TooManyRequestsRefusal)
            or (overloaded_since := self._history(index).overloaded_since) is None
            or overloaded_since <= overloaded_before
        }

    def _refusals(self) -> list[Exception]:
        """Why bookies refuse this client for good, if no ack quorum can do without them; else nothing."""
        refusals = {index: cause for index, cause in self._writer.failures.items() if is_refusal(cause)}
        return list(refusals.values()) if self._writer.blocked_by(refusals) else []

    def _history(self, index: int) -> _FailureHistory:
        return self._histories.setdefault(self._writer.ensemble[index], _FailureHistory())

    def _tried(self) -> tuple[str, ...]:
        return tuple(sorted(self._histories, key=lambda bookie: (self._histories[bookie].failed_at, bookie)))

    def _is_urgent(self, now_s: float) -> bool:
        """Half of the retry timeout is over: the writer takes even bookies that it would rather avoid."""
        self._note_progress()
        since, retry_timeout_s = self._blocked_since, self._config.unavailable_timeout_s
        return self._writer.blocked and since is not None and now_s - since >= retry_timeout_s / 2

    def _retry_timeout_is_over(self, now_s: float) -> bool:
        self._note_progress()
        if not self._writer.blocked:
            # Perhaps only until the bookie that was taken in just now turns out to be dead as well. Only
            # progress of the LAC starts the retry timeout again. Otherwise a writer that goes from one dead
            # bookie to the next would never give up.
            return False
        if self._blocked_since is None:
            self._blocked_since = now_s
        return now_s - self._blocked_since >= self._config.unavailable_timeout_s

    def _note_progress(self) -> None:
        lac = self._writer.lac
        if lac != self._blocked_at or not self._writer.pending_count:
            self._blocked_since, self._blocked_at = None, lac

    # --- the end --------------------------------------------------------------------------------------------

    def _end_by(self, cause: Exception, message: str) -> list[Action]:
        ledger_id = self._ledger_id

        def make() -> LedgerError:
            error = LedgerWriteError(ledger_id, message)
            error.__cause__ = cause
            return error

        return self._end(make)

    def _end(self, make_error: MakeError) -> list[Action]:
        if self.is_over:
            return []
        self.stop()
        return [End(make_error)]


def _confirm(entry_ids: range) -> list[Action]:
    return [Confirm(entry_ids)] if entry_ids else []


def _send(adds: SendAdds | None) -> list[Action]:
    return [] if adds is None else [adds]
