"""The names that a package offers, each imported when it is first used: a program pays for what it uses.

A package writes each name once, as an import under ``if TYPE_CHECKING``, which type checkers and editors
read. At run time the same imports are found in the package's compiled code.
"""

from __future__ import annotations

import dis
import functools
import importlib
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from typing import Any


def lazy_name(package: str, name: str) -> Any:
    """The value of a name that ``package`` does not have yet; ``__getattr__`` of the package returns it.

    Raises:
        AttributeError: The package offers no such name.
    """
    names = _modules_of(package)
    if name == "__all__":
        value: Any = sorted(names)
    elif name not in names:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    elif names[name] == package:
        value = importlib.import_module(f"{package}.{name}")
    else:
        value = getattr(importlib.import_module(names[name]), name)
    setattr(sys.modules[package], name, value)  # the next use finds it without this function
    return value


@functools.cache
def _modules_of(package: str) -> Mapping[str, str]:
    """Each public name that the package imports from ours, and the module that has it."""
    found, module, imported = {}, "", ""
    spec = vars(sys.modules[package])["__spec__"]
    # pytest imports a plugin's distribution by a loader of its own, which has no ``get_code``.
    loader: Any = spec.loader if hasattr(spec.loader, "get_code") else SourceFileLoader(package, spec.origin)
    for step in dis.get_instructions(loader.get_code(package)):
        if step.opname == "IMPORT_NAME":
            module = step.argval
        elif step.opname == "IMPORT_FROM":
            imported = step.argval
        elif step.argval == imported and module.partition(".")[0] not in sys.stdlib_module_names:
            found[imported] = module  # it is stored under its own name
    return found
