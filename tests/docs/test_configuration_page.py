"""``docs/configuration.md`` has the fate of each key as the program has it.

Run as a program, the file writes the table into the page again.
"""

from __future__ import annotations

import re

from bookie.config.keys import KNOWN, PROTECTING, group_of
from tests.places import ROOT
from tests.unit.bookie.config.apache_keys import apache_keys

PAGE = ROOT / "docs" / "configuration.md"
TABLE = re.compile(r"(?<=<!-- table -->\n).*(?=<!-- end of table -->)", re.DOTALL)


def table() -> str:
    """All known keys in Markdown."""
    classes = apache_keys()
    lines = ["| key | class | fate | note |", "|---|---|---|---|"]
    for key in sorted(KNOWN, key=str.lower):
        group = group_of(key)
        note = group.reason or ("a misspelt name is an error" if key in PROTECTING else "")
        home = classes.get(key, "").removesuffix("Configuration").lower() or "-"
        lines.append(f"| `{key}` | {home} | {group.fate.value} | {note} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_fate_of_each_key() -> None:
    found = TABLE.search(PAGE.read_text("utf-8"))
    assert found, "docs/configuration.md has lost its marks"
    assert found[0] == table(), "python -m tests.docs.test_configuration_page writes the table again"


if __name__ == "__main__":
    PAGE.write_text(TABLE.sub(lambda _: table(), PAGE.read_text("utf-8")), "utf-8")
