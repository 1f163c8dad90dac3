"""The token of a local cluster's HTTP servers: made once, readable by its owner only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

TOKEN_BYTES = 24


def write_token(path: Path) -> None:
    """Write a new random token, unless the file exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
