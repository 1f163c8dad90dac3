"""The history of logs, and its checker: loss, repetition, order, gaps.

Inside: the outcome of each record that was submitted, the records that each reader returned, the rules
(``Rule``). Not inside: recording (``dlog.testing.recording``), reading a log to its
end.
Always: the verdict follows from submissions, acknowledgements and returned records alone, so it uses no
code of the library but the values ``DLSN`` and ``RecordOutcome``; a record with an unknown outcome may be in
the log once or not at all.

Source: docs/known-bugs.md 80 has the anomalies by their names in the field.
"""

from __future__ import annotations

import bisect
import enum
from collections import Counter
from collections.abc import Iterable

import attrs

from dlog.errors import RecordOutcome
from dlog.format.record import Record
from ledger.pickling import PicklableError
from namespace.dlsn import DLSN

SHOWN_BYTES = 60  # of a payload in a complaint


class Rule(enum.StrEnum):
    """A property of every log."""

    NO_LOSS = "no acknowledged record is lost"
    NOT_TOO_EARLY = "a program says that a record is stored once it is, not before"
    NO_REPEAT = "no record is stored more often than it was submitted"
    NOT_WRITTEN = "a record that was reported as not written is not in the log"
    STORED_ONCE = "a record that may be stored once is not stored twice"
    ATOMIC = "an atomic batch is stored whole or not at all"
    INCREASING = "positions strictly increase"
    ORDER = "a record comes after those acknowledged before it was submitted"
    ONE_SEQUENCE = "all readers and writers see one sequence"
    NO_GAP = "no reader leaves out a record"
    ONE_LOG = "a reader stays with one log when it is deleted and created again"


@attrs.frozen
class Problem:
    """A rule that did not hold, and the evidence."""

    rule: Rule
    log: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.rule.value}: log {self.log!r}: {self.evidence}"


class HistoryViolationError(PicklableError, AssertionError):
    """A history that a correct log cannot have. ``problems`` has all of it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


@attrs.define(eq=False)
class Submission:
    """One record that a writer took."""

    payload: bytes
    txid: int
    after: DLSN | None  # the greatest position acknowledged before
    is_once: bool = False  # a repeated attempt must not store it again
    group: object = None  # the atomic batch that it belongs to
    outcome: RecordOutcome = RecordOutcome.PENDING
    dlsn: DLSN | None = None

    @property
    def key(self) -> tuple[int, bytes]:
        return self.txid, self.payload


@attrs.define(eq=False)
class ReaderHistory:
    """The records that one reader returned, in order. Made by ``LogHistory.open_reader``."""

    log: LogHistory
    name: str
    start: DLSN | None = None  # a reader that began at a position may not leave out the records after it
    dlsns: list[DLSN] = attrs.field(factory=list)

    def returned(self, record: Record) -> None:
        """Note a record that the reader returned."""
        if self.dlsns and record.dlsn <= self.dlsns[-1]:
            self.log.complain(
                Rule.INCREASING, f"reader {self.name} returned {record.dlsn} after {self.dlsns[-1]}"
            )
        self.dlsns.append(record.dlsn)
        self.log.stored(record.dlsn, record.txid, record.payload, f"reader {self.name}")


class LogHistory:
    """One log from its creation to its deletion."""

    def __init__(self, name: str, problems: list[Problem]) -> None:
        self.name = name
        self.is_deleted = False
        self.submissions: list[Submission] = []
        self.readers: list[ReaderHistory] = []
        self.last_acknowledged: DLSN | None = None
        self._problems = problems
        self._records: dict[DLSN, tuple[int, bytes]] = {}  # acknowledged, or returned by a reader
        self._order: list[DLSN] = []
        self._acknowledged: dict[DLSN, Submission] = {}
        self._keys: set[tuple[int, bytes]] = set()  # of all submissions

    @property
    def dlsns(self) -> list[DLSN]:
        """The positions of all records that were acknowledged or read, in order."""
        return self._order

    def complain(self, rule: Rule, evidence: str) -> None:
        """Note a problem."""
        self._problems.append(Problem(rule, self.name, evidence))

    def submitted(
        self, payload: bytes, txid: int, *, is_once: bool = False, group: object = None
    ) -> Submission:
        """Note a record that a writer took.

        Args:
            is_once: Later submissions of the same payload and transaction id are attempts to store the same
                record.
            group: Equal for the records of an atomic batch.
        """
        submission = Submission(payload, txid, self.last_acknowledged, is_once, group)
        self.submissions.append(submission)
        self._keys.add(submission.key)
        return submission

    def settled(self, submission: Submission, outcome: RecordOutcome, dlsn: DLSN | None = None) -> None:
        """Note the outcome of a record; with ``DURABLE`` its position."""
        submission.outcome = outcome
        if outcome is not RecordOutcome.DURABLE:
            return
        if dlsn is None:
            raise ValueError("a durable record has a position; give it as dlsn")
        submission.dlsn = dlsn
        if submission.after is not None and dlsn <= submission.after:
            self.complain(
                Rule.ORDER, f"{dlsn} was acknowledged, but {submission.after} before it was submitted"
            )
        other = self._acknowledged.get(dlsn)
        if other is not None and not (submission.is_once and other.key == submission.key):
            self.complain(Rule.ONE_SEQUENCE, f"{dlsn} was acknowledged twice")
        self._acknowledged[dlsn] = submission
        if self.last_acknowledged is None or dlsn > self.last_acknowledged:
            self.last_acknowledged = dlsn
        self.stored(dlsn, submission.txid, submission.payload, "a writer")

    def acknowledged(self, payload: bytes, txid: int | None = None) -> None:
        """Note that the program has answered its own caller that this record is stored."""
        if not any(payload == stored and txid in (None, its) for its, stored in self._records.values()):
            what = f"record {payload[:SHOWN_BYTES]!r}" if txid is None else shown(txid, payload)
            self.complain(
                Rule.NOT_TOO_EARLY, f"the program acknowledged {what}, which no writer had acknowledged"
            )

    def open_reader(self, name: str, start: DLSN | None = None) -> ReaderHistory:
        """The history of a new reader; ``start``: the position that it begins at, if that is known."""
        reader = ReaderHistory(self, name, start)
        self.readers.append(reader)
        return reader

    def has(self, txid: int, payload: bytes) -> bool:
        """True if such a record was submitted to this log."""
        return (txid, payload) in self._keys

    def stored(self, dlsn: DLSN, txid: int, payload: bytes, seen_by: str) -> None:
        """Note that a position holds a record."""
        found = self._records.get(dlsn)
        if found is None:
            self._records[dlsn] = (txid, payload)
            bisect.insort(self._order, dlsn)
        elif found != (txid, payload):
            self.complain(
                Rule.ONE_SEQUENCE,
                f"{seen_by} sees {shown(txid, payload)} at {dlsn}, where {shown(*found)} was seen before",
            )

    def judge(self, records: Iterable[Record] | None, first_left: DLSN | None = None) -> None:
        """Judge the whole history.

        Args:
            records: All records of the log now; None if it was deleted.
            first_left: The log begins here now; earlier records are truncated.
        """
        if records is not None:
            self._judge_end(list(records), first_left)
        self._judge_copies()
        for reader in self.readers:
            self._judge_reader(reader)

    def _judge_end(self, records: list[Record], first_left: DLSN | None) -> None:
        last: DLSN | None = None
        for record in records:
            if last is not None and record.dlsn <= last:
                self.complain(Rule.INCREASING, f"{record.dlsn} follows {last}")
            last = record.dlsn
            self.stored(record.dlsn, record.txid, record.payload, "the last reader")
        found = {record.dlsn for record in records}
        lost = [
            dlsn for dlsn in self._order if dlsn not in found and (first_left is None or dlsn >= first_left)
        ]
        if acknowledged := [dlsn for dlsn in lost if dlsn in self._acknowledged]:
            self.complain(Rule.NO_LOSS, f"{_listed(acknowledged)} are acknowledged and not in the log")
        elif lost:
            self.complain(Rule.ONE_SEQUENCE, f"{_listed(lost)} were read before and are not in the log now")
        self._judge_groups(records)

    def _judge_copies(self) -> None:
        stored = Counter(self._records.values())
        attempts: dict[tuple[int, bytes], list[Submission]] = {}
        for submission in self.submissions:
            attempts.setdefault(submission.key, []).append(submission)
        for key, copies in stored.items():
            mine = attempts.get(key, [])
            possible = sum(each.outcome is not RecordOutcome.NOT_WRITTEN for each in mine)
            if any(each.is_once for each in mine) and copies > 1:
                self.complain(Rule.STORED_ONCE, f"{shown(*key)} is stored {copies} times")
            elif copies > len(mine):
                self.complain(
                    Rule.NO_REPEAT, f"{shown(*key)} is stored {copies} times, submitted {len(mine)} times"
                )
            elif copies > possible:
                self.complain(Rule.NOT_WRITTEN, f"{shown(*key)} is stored {copies} times")

    def _judge_groups(self, records: list[Record]) -> None:
        stored = {(record.txid, record.payload): record.dlsn for record in records}
        first = records[0].dlsn if records else None
        attempts = Counter(each.key for each in self.submissions)
        groups: dict[object, list[Submission]] = {}
        for submission in self.submissions:
            if submission.group is not None and attempts[submission.key] == 1:
                groups.setdefault(submission.group, []).append(submission)
        for group in groups.values():
            found = [each for each in group if each.key in stored]
            if found and len(found) < len(group) and stored[found[0].key] != first:  # else: truncated
                self.complain(
                    Rule.ATOMIC, f"{len(found)} of {len(group)} records are stored: {shown(*found[0].key)}"
                )

    def _judge_reader(self, reader: ReaderHistory) -> None:
        if not reader.dlsns:
            return
        first = reader.dlsns[0] if reader.start is None else min(reader.start, reader.dlsns[0])
        start, stop = bisect.bisect_left(self._order, first), bisect.bisect(self._order, reader.dlsns[-1])
        returned = set(reader.dlsns)
        if missing := [dlsn for dlsn in self._order[start:stop] if dlsn not in returned]:
            self.complain(
                Rule.NO_GAP,
                f"reader {reader.name} returned {reader.dlsns[0]} to {reader.dlsns[-1]} without"
                f" {_listed(missing)}",
            )


class History:
    """The logs of a namespace, each with all of its lives. ``check`` raises if a rule did not hold."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.logs: dict[str, list[LogHistory]] = {}

    def log(self, name: str) -> LogHistory:
        """The present life of a log."""
        lives = self.logs.setdefault(name, [])
        if not lives or lives[-1].is_deleted:
            lives.append(LogHistory(name, self.problems))
        return lives[-1]

    def deleted(self, name: str) -> None:
        """Note that a log was deleted. A log created later under this name is another one."""
        for life in self.logs.get(name, ()):
            life.is_deleted = True

    def check(self) -> None:
        """Raise HistoryViolationError with all problems found so far, if there are any."""
        self.check_rules()

    def check_rules(self) -> None:
        """As ``check``, also where a subclass reads the logs first."""
        if self.problems:
            raise HistoryViolationError(dict.fromkeys(self.problems))


def shown(txid: int, payload: bytes) -> str:
    """A record in a complaint."""
    more = "..." if len(payload) > SHOWN_BYTES else ""
    return f"record {payload[:SHOWN_BYTES]!r}{more} (txid {txid})"


def _listed(dlsns: list[DLSN]) -> str:
    more = f" and {len(dlsns) - 3} more" if len(dlsns) > 3 else ""
    return ", ".join(map(str, dlsns[:3])) + more
