"""``docs/configuration.md`` has the values, defaults, meanings and fates of all keys as the program has them.

Run as a program, the file writes the table into the page again.
"""

from __future__ import annotations

import re

import attrs

from bookie.config.keys import KNOWN, PROTECTING, group_of
from bookie.config.table import KEYS, BookieKey
from tests.places import ROOT
from tests.unit.bookie.config.apache_keys import apache_keys

PAGE = ROOT / "docs" / "configuration.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*(?=<!-- end of table -->)", re.DOTALL)


def table() -> str:
    """All known keys in Markdown: those that are obeyed in the order of their table, the others by name."""
    homes = {name: home.removesuffix("Configuration").lower() for name, home in apache_keys().items()}
    lines = ["| obeyed key | class | value | default | meaning |", "|---|---|---|---|---|"]
    for row in KEYS.values():
        mark = " !" if row.protects else ""
        value = row.kind.expected.partition(", such as")[0].replace(f" of at least {-(2**31)}", "")
        default = default_cell(row)
        lines.append(f"| `{row.name}`{mark} | {homes.get(row.name, '-')} | {value} | {default} | {row.doc} |")
    lines += ["", "| other key | class | fate | reason |", "|---|---|---|---|"]
    for key in sorted(KNOWN - KEYS.keys(), key=str.lower):
        group = group_of(key)
        mark = " !" if key in PROTECTING else ""
        lines.append(f"| `{key}`{mark} | {homes.get(key, '-')} | {group.fate.value} | {group.reason} |")
    return "\n".join(lines) + "\n"


def default_cell(row: BookieKey) -> str:
    """The default as a file has it; empty if the meaning says it, or if there is none."""
    if row.default in (None, ()) or row.default is attrs.NOTHING:
        return ""
    value = row.kind.written(row.default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def test_the_page_has_the_fate_of_each_key() -> None:
    found = TABLE.search(PAGE.read_text("utf-8"))
    assert found, "docs/configuration.md has lost its marks"
    assert found[0] == table(), "python -m tests.docs.test_configuration_page writes the table again"


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text("utf-8")), "utf-8")
