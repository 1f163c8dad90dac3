"""Tables of systems: ratios of the first row to the others, and the text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlog.cli.terminal.output import print_table


def with_ratios(rows: Sequence[Mapping[str, Any]], ratios: Mapping[str, str]) -> list[dict[str, Any]]:
    """The rows, each with the first row's figures divided by its own.

    Args:
        ratios: The name of each ratio, and the figure that it compares. A figure that is missing or 0 has no
            ratio (None).
    """
    first = rows[0]
    return [
        {
            **row,
            **{
                name: round(first[key] / row[key], 2) if row[key] and first[key] is not None else None
                for name, key in ratios.items()
            },
        }
        for row in rows
    ]


def print_rows(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table: a column for each heading, with the values of its key."""
    print_table(list(columns), [[shown(row[key]) for key in columns.values()] for row in rows])


def shown(value: object) -> str:
    """A value as text: numbers with separators, "-" for nothing."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
