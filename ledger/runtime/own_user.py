"""The name of the user that this program runs as.

Source: our own.
"""

from __future__ import annotations

import getpass
import os


def own_user() -> str:
    """The user's name; their number if the system has no name for it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())
