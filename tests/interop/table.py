"""The table of compatibility: its rows, their cells, and the verdict of a run.

Inside: the declared cells, the mark by which a test names the cells it proves, printing. Not inside: the
tests (``test_*.py``), gathering their outcomes (``conftest``).
Always: a row is green only if, for each version of the run, at least one test has proven each of its cells
and no test of the row failed or was skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import pytest


@attrs.frozen
class Row:
    """One line of the table: an actor, the object it acts on, and the cells to prove."""

    number: int
    actor: str
    on: str
    cells: tuple[str, ...]

    @property
    def shows(self) -> str:
        """The cells as one line."""
        return ", ".join(self.cells)


ROWS = (
    Row(
        1,
        "our client",
        "Java bookies",
        (
            "create, append, read, close: v2",
            "create, append, read, close: v3",
            "each digest type",
            "E > Qw striping",
            "long poll",
            "explicit LAC",
            "delete",
            "wrong password refused",
        ),
    ),
    Row(
        2,
        "Java client",
        "our bookies",
        (
            "create, append, read, close: v2",
            "create, append, read, close: v3",
            "each digest type",
            "E > Qw striping",
            "long poll",
            "explicit LAC",
            "delete",
            "wrong password refused",
            "LedgerHandleAdv",
            "batch read",
            "deferred sync and force",
            "bookie info",
            "list of entries",
        ),
    ),
    Row(
        3,
        "our recovery",
        "a ledger whose Java writer was killed",
        (
            "same last entry as Java's own recovery",
            "killed while writing",
            "the resumed Java writer is fenced",
        ),
    ),
    Row(
        4,
        "Java recovery",
        "a ledger whose Python writer was killed",
        (
            "same last entry as our own recovery",
            "killed while writing",
            "the resumed Python writer is fenced",
            "a bookie that lost its disks denies nothing",
        ),
    ),
    Row(
        5,
        "both clients",
        "Java and our bookies mixed, one killed while writing",
        (
            "our client, a Java bookie killed",
            "our client, our bookie killed",
            "Java client, a Java bookie killed",
            "Java client, our bookie killed",
        ),
    ),
    Row(
        6,
        "Java shell and bkctl",
        "our cluster",
        ("list bookies", "ledger metadata", "read a ledger", "simple test", "bookie info"),
    ),
    Row(7, "our CLI", "a Java cluster", ("the same output as Apache's shell",)),
    Row(
        8,
        "Java DistributedLog reader",
        "streams our writer wrote",
        (
            "rolled",
            "LZ4",
            "in progress",
            "completed",
            "truncated",
            "attached in a batch",
            "keys and headers",
            "shared writers",
            "shared writers, the owner killed",
        ),
    ),
    Row(
        9,
        "our reader",
        "streams the Java DistributedLog writer wrote",
        (
            "rolled",
            "LZ4",
            "in progress",
            "completed",
            "truncated",
            "tailing",
            "access control",
            "federated",
            "renamed",
        ),
    ),
    Row(
        10,
        "two writers, one Java, one ours",
        "one stream",
        (
            "lock hand-over, Java then ours",
            "lock hand-over, ours then Java",
            "fencing",
            "no gap, no repetition",
        ),
    ),
    Row(
        11,
        "Java's offline tools",
        "our journal and entry-log files",
        ("they read our journal", "they read our entry logs", "ours read theirs"),
    ),
    Row(
        12,
        "one ZooKeeper",
        "Java and our bookies registered together",
        ("instance id", "layout", "cookies", "read-only switch seen by both", "both metadata codecs"),
    ),
    Row(
        13,
        "our Python client",
        "an Apache cluster with TLS, and with mutual TLS",
        ("connects, writes, reads", "refuses a wrong certificate", "is refused without one"),
    ),
    Row(
        14,
        "both clients",
        "bookies of the other side that demand authentication",
        (
            "our client, SASL: v2",
            "our client, SASL: v3",
            "our client, wrong password",
            "our client, SASL in TLS",
            "our client, role of its certificate",
            "Java client, SASL: v2",
            "Java client, SASL: v3",
            "Java client, wrong password",
            "Java client, SASL in required TLS",
            "Java client, role of its certificate",
            "Java client, clear text refused",
            "our bookie, a changed password",
            "our bookie, permissions by a policy",
        ),
    ),
    Row(
        15,
        "auto-recovery of both",
        "one cluster of Java and our bookies",
        (
            "Apache's worker restores what our auditor marked",
            "our worker restores what Apache's auditor marked",
            "one election",
            "Apache's shell shows our auditor and our marks",
        ),
    ),
)


def proves(row: int, *cells: str) -> pytest.MarkDecorator:
    """Mark a test with a row and the cells that it proves. A test may have marks for several rows."""
    declared = next(each for each in ROWS if each.number == row)
    unknown = [cell for cell in cells if cell not in declared.cells]
    assert cells, f"a mark for row {row} must name at least one cell"
    assert not unknown, f"row {row} declares no cells {unknown}; see {__file__}"
    return pytest.mark.interop(row=row, cells=cells)


@attrs.define
class Tally:
    """The cells that the tests of a run have proven so far."""

    passed: set[tuple[int, str, str]] = attrs.field(factory=set)  # (row, cell, version)
    not_passed: set[tuple[int, str, str]] = attrs.field(factory=set)  # failed, errored or skipped

    def add(self, row: int, cells: Iterable[str], version: str, *, passed: bool) -> None:
        """Add the outcome of one test."""
        (self.passed if passed else self.not_passed).update((row, cell, version) for cell in cells)

    def missing(self, row: Row, version: str) -> list[str]:
        """The cells of the row that this run did not prove for the version."""
        return [
            cell
            for cell in row.cells
            if (row.number, cell, version) not in self.passed
            or (row.number, cell, version) in self.not_passed
        ]

    def verdict(self, row: Row, version: str) -> str:
        """``green``, ``RED`` (a test failed) or ``not run`` (a cell has no outcome)."""
        if not self.missing(row, version):
            return "green"
        failed = any((row.number, cell, version) in self.not_passed for cell in row.cells)
        return "RED" if failed else "not run"


def table_lines(tally: Tally, versions: Sequence[str], *, complete: bool = True) -> list[str]:
    """The lines of the table with a verdict for each row and version, followed by the missing cells.

    Args:
        complete: Also list the rows of which no test ran.
    """
    tried = {row for row, _, _ in tally.passed | tally.not_passed}
    rows = [row for row in ROWS if complete or row.number in tried]
    head = ["#", "actor", "on", *versions]
    body = [
        [str(row.number), row.actor, row.on, *(tally.verdict(row, version) for version in versions)]
        for row in rows
    ]
    widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, *body]
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    for row in rows:
        for text, versions_of_text in _by_text(
            {version: "; ".join(tally.missing(row, version)) for version in versions}
        ).items():
            if text:
                lines.append(f"row {row.number}, {' and '.join(versions_of_text)}: not proven: {text}")
    return lines


def all_green(tally: Tally, versions: Sequence[str]) -> bool:
    """True if every cell of every row was proven for every version."""
    return not any(tally.missing(row, version) for row in ROWS for version in versions)


def _by_text(texts: Mapping[str, str]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for version, text in texts.items():
        grouped.setdefault(text, []).append(version)
    return grouped
