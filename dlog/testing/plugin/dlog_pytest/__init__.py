"""The pytest plugin: the fixture ``dlog_world``.

Inside: the fixture. Not inside: the world (``dlog.testing.world``), imported when a test asks for it.
pytest loads this package as ``dlog_pytest``, so that a run without the fixture does not import ``dlog``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dlog.testing.world import World

__all__ = ["dlog_world"]


@pytest.fixture
def dlog_world() -> Iterator[World]:
    """A namespace in memory, on a disk that the test can cut, slow, fill and damage: a ``World``."""
    from dlog.testing.world import open_world

    with open_world() as world:
        yield world
