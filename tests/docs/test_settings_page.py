"""``docs/settings.md`` has the tables of the settings as the program has them.

Run as a program, the file writes the tables into the page again.
"""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from dlog.settings import NONE, SETTINGS, Setting, read_file, shown
from dlog.settings.table import SECTIONS, Applies
from tests.places import ROOT

PAGE = ROOT / "docs" / "settings.md"
TABLES = re.compile(r"(?<=<!-- tables -->\n).*(?=<!-- end of tables -->)", re.DOTALL)
TITLES = {
    "": "Namespace",
    "writer": "`[writer]`",
    "reader": "`[reader]`",
    "heal": "`[heal]`",
    "placement": "`[placement]`",
    "bookies": "`[bookies]`: TLS and authentication with bookies",
    "zookeeper": "`[zookeeper]`: identity and TLS with ZooKeeper",
}


def tables() -> str:
    """The tables of all sections in Markdown."""
    return "\n".join(
        f"### {TITLES[section]}\n\n| setting | type | default | meaning |\n|---|---|---|---|\n"
        + "".join(map(row, (one for one in SETTINGS.values() if one.section == section)))
        for section in SECTIONS
    )


def row(setting: Setting) -> str:
    unit = f", {setting.kind.unit}" if setting.kind.unit else ""
    value = shown(setting.default)
    default = str(value).lower() if isinstance(value, bool) else str(value)
    if setting.kind.unit == "bytes" and isinstance(value, int) and value % 1024 == 0:
        default = f"{value >> 20}M" if value % (1 << 20) == 0 else f"{value >> 10}K"
    only = {Applies.EVERYWHERE: "", Applies.COMMANDS: " For commands."}.get(
        setting.applies, f" Only `{setting.applies.value}`."
    )
    if value is None and setting.kind.is_optional:
        value = default = NONE
    cell = "" if value in (None, []) else f"`{default}`"
    return f"| `{setting.name}` | {setting.kind.type_name}{unit} | {cell} | {setting.doc}{only} |\n"


def test_the_page_has_the_tables_of_the_settings() -> None:
    found = TABLES.search(PAGE.read_text("utf-8"))
    assert found, "docs/settings.md has lost its marks"
    assert found[0] == tables(), "python -m tests.docs.test_settings_page writes the tables again"


def test_the_example_of_a_file_is_one(tmp_path: Path) -> None:
    example = re.search(r"```text\n(# shop\.toml\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert example
    file = tmp_path / "shop.toml"
    file.write_text(example[1])
    assert len(read_file(file)) == 8


def test_every_default_is_in_its_row() -> None:
    assert "| `writer.segment_bytes_max` | size, or none, bytes | `256M` |" in tables()
    assert "| `connect_timeout_s` | number, seconds | `10.0` |" in tables()
    assert len(attrs.fields(Setting)) == 4  # name, kind, doc, applies: all are in a row


if __name__ == "__main__":
    PAGE.write_text(TABLES.sub(lambda _: tables(), PAGE.read_text("utf-8")), "utf-8")
