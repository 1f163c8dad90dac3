"""Tasks of a pipeline without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def one_by_one(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
    """Run the tasks in this process, one after the other. It is a ``RunTasks``."""
    return list(map(function, items))
