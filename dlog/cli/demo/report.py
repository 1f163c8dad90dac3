"""The report of the demo, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dlog.cli.terminal.output import print_facts
from dlog.cli.terminal.screen import GREEN, RED, styled


@attrs.frozen(kw_only=True)
class DemoReport:
    """The result of one demo."""

    source: str
    deployment: str
    lines: int
    records: int  # read back
    size_bytes: int
    seconds: float  # of writing, both writers
    append_s: list[float]  # sorted; each a single awaited append
    segments: int
    acknowledged_before_kill: int
    acknowledged_lost: int
    lost: int
    repeated: int
    reordered: int
    changed: int
    spark_records: int | None

    @property
    def is_good(self) -> bool:
        """True if no line was lost, repeated, reordered or changed, and Spark counted all if it was used."""
        wrong = self.lost + self.repeated + self.reordered + self.changed
        return not wrong and self.spark_records in (None, self.lines)

    def document(self) -> dict[str, object]:
        """The document for ``--json``."""
        return {
            "records": self.records,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.lines / self.seconds, 1),
            "append_p50_ms": round(quantile(self.append_s, 0.50) * 1000, 3),
            "append_p99_ms": round(quantile(self.append_s, 0.99) * 1000, 3),
            "segments": self.segments,
            "acknowledged_before_kill": self.acknowledged_before_kill,
            "lost": self.lost,
            "repeated": self.repeated,
            "reordered": self.reordered,
            "spark_records": self.spark_records,
        }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The least value that at least this share of the values does not exceed; 0 without values."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def print_report(report: DemoReport) -> None:
    """Print a short table, then the verdict as a sentence."""
    numbers = report.document()
    kept = report.acknowledged_before_kill - report.acknowledged_lost
    facts = [
        ("deployment", report.deployment),
        ("records", f"{report.records:,} of {report.lines:,} lines, {report.size_bytes:,} bytes"),
        ("written in", f"{report.seconds:.2f} s: {report.lines / report.seconds:,.0f} records/s"),
        ("one append", f"p50 {numbers['append_p50_ms']:.2f} ms, p99 {numbers['append_p99_ms']:.2f} ms"),
        ("segments", str(report.segments)),
        (
            "SIGKILL",
            f"{report.acknowledged_before_kill:,} lines acknowledged before it, {kept:,} of them read back",
        ),
    ]
    if report.spark_records is not None:
        facts.append(("Spark counts", f"{report.spark_records:,}"))
    print_facts(facts)
    if report.is_good:
        print(styled("The log has every line once, unchanged and in order.", GREEN))
    else:
        print(
            f"{styled('Wrong:', RED)} {report.lost:,} lost, {report.repeated:,} repeated, "
            f"{report.reordered:,} reordered, {report.changed:,} changed"
            + (
                ""
                if report.spark_records in (None, report.lines)
                else f"; Spark counted {report.spark_records:,} of {report.lines:,}"
            )
        )
