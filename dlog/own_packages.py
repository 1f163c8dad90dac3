"""The other packages of DLog must be ours: a program's own ``ledger.py`` or ``namespace/`` would hide them.

Inside: the check that ``import dlog`` makes first. Not inside: any import of these packages.

Source: our own.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

NAMES = ("ledger", "bookie", "namespace")


def check_own_packages(own: str, names: tuple[str, ...] = NAMES) -> None:
    """Check that each package lies beside ``dlog``.

    Args:
        own: The file of ``dlog``.

    Raises:
        ImportError: Another file or directory has the name of one of them, or it is missing.
    """
    parent = os.path.dirname(os.path.dirname(os.path.realpath(own)))
    for name in names:
        found = _place(name)
        if found is None:
            raise ImportError(f"DLog's package {name!r} is missing beside {own}; install DLog again")
        if os.path.realpath(found) not in (
            os.path.join(parent, name),
            os.path.join(parent, name, "__init__.py"),
        ):
            raise ImportError(
                f"{found} is in the way: DLog has a package {name!r} of its own, and Python finds this one"
                " first. Rename it, or start the program from another directory"
            )


def _place(name: str) -> str | None:
    """The file of a package, or the directory of one without ``__init__.py``."""
    loaded = sys.modules.get(name)
    spec: ModuleSpec | None
    if loaded is not None and getattr(loaded, "__spec__", None) is None:
        return getattr(loaded, "__file__", None)
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.has_location and spec.origin is not None:
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), None)
