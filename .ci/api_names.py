"""For the pages of the API: a package's public names are those that it imports for type checkers.

`mkdocs` reads the source and looks for a list ``__all__``. ``dlog`` and ``ledger`` have none in their source:
they write each name once, as ``from module import name as name`` (``ledger.runtime.lazy_names``).
"""

from __future__ import annotations

import ast
from typing import Any

import griffe


class ImportedNames(griffe.Extension):
    """Exports the names that these packages import."""

    def on_module_members(self, *, node: Any, mod: griffe.Module, **_: Any) -> None:
        """Called when the source of a module is read."""
        if mod.path in ("dlog", "ledger") and isinstance(node, ast.AST):
            mod.exports = [
                alias.name
                for each in ast.walk(node)
                if isinstance(each, ast.ImportFrom)
                for alias in each.names
                if alias.asname == alias.name
            ]
