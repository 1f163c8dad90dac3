"""A setting, declared once: its name, what a value may be, the attribute that it fills, its meaning.

Inside: what the rows of both tables have. Not inside: the tables, the places of values, their precedence.
Always: the default is that of the attribute, so it is written in one place.
"""

from __future__ import annotations

from typing import Any

import attrs

from ledger.settings.kinds import Kind


@attrs.frozen(eq=False)
class SettingRow:
    """One setting."""

    name: str  # also the key in a file
    kind: Kind
    doc: str  # its meaning, for a page

    @property
    def attribute(self) -> Any:
        """The attribute of a class that a value fills; None if a function reads the setting."""
        return None

    @property
    def default(self) -> Any:
        """The value if no place gives one."""
        field = self.attribute
        return None if field is None else default_of(field)


def default_of(field: Any) -> Any:
    """The default of an attribute of a configuration."""
    return field.default.factory() if isinstance(field.default, attrs.Factory) else field.default  # type: ignore[arg-type]
