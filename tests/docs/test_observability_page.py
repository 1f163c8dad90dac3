"""``docs/observability.md`` has the tables of the names as the program has them.

``python -m tests.docs.test_observability_page`` writes the tables again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dlog import statistics_names as logs
from ledger.runtime.statistics import names as ledgers
from tests.places import ROOT

PAGE = ROOT / "docs" / "observability.md"
TABLES = re.compile(r"(?<=<!-- tables -->\n).*(?=<!-- end of tables -->)", re.DOTALL)


def tables() -> str:
    """The tables of all kinds in Markdown."""
    kinds: tuple[tuple[str, str, Mapping[str, str], Mapping[str, str]], ...] = (
        ("Counters", "number of", ledgers.COUNTERS, logs.COUNTERS),
        ("Gauges", "number of", ledgers.GAUGES, logs.GAUGES),
        ("Histograms", "time of", ledgers.TIMINGS, logs.TIMINGS),
    )
    return "\n".join(
        f"### {title}\n\n| name | {meaning} |\n|---|---|\n"
        + "".join(f"| `{name}` | {doc} |\n" for name, doc in sorted({**one, **other}.items()))
        for title, meaning, one, other in kinds
    )


def test_the_page_has_the_tables_of_the_names() -> None:
    found = TABLES.search(PAGE.read_text("utf-8"))
    assert found, "docs/observability.md has lost its marks"
    assert found[0] == tables(), "python -m tests.docs.test_observability_page writes the tables again"


def test_no_name_has_two_meanings() -> None:
    tables = (ledgers.COUNTERS, ledgers.GAUGES, ledgers.TIMINGS, logs.COUNTERS, logs.GAUGES, logs.TIMINGS)
    every = [name for table in tables for name in table]
    assert len(set(every)) == len(every)


if __name__ == "__main__":
    PAGE.write_text(TABLES.sub(lambda _: tables(), PAGE.read_text("utf-8")), "utf-8")
