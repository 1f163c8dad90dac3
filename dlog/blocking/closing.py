"""The end of a ``with`` block."""

from __future__ import annotations

from collections.abc import Callable


def close_after_block(close: Callable[[], None], exc: BaseException | None) -> None:
    """Close. If the block raised, its error is raised, not one of closing."""
    try:
        close()
    except Exception:
        if exc is None:
            raise
