"""Promoting the logs of a directory, one after the other.

Inside: which logs. Not inside: one log (``promoting``).
"""

from __future__ import annotations

from collections.abc import Iterable

from dlog.config import NamespaceConfig
from dlog.connect import open_namespace
from dlog.operations.promoting import OnProgress, no_report
from dlog.promotion.sides import PromotionStatus


async def promote(
    source: str,
    to: str | None = None,
    logs: Iterable[str] | None = None,
    *,
    config: NamespaceConfig | None = None,
    keep_target_policy: bool = False,
    on_progress: OnProgress = no_report,
) -> list[PromotionStatus]:
    """Move logs of a directory to a cluster, while they are written and read; see ``Namespace.promote_log``.

    If the call is cancelled or fails, logs before the one in work are promoted. Call it again to continue.

    Args:
        source: The URI of the directory.
        to: The URI of the target; None to continue with interrupted promotions only.
        logs: None for all logs; with ``to=None``, for all whose promotion was interrupted.
        config: For both namespaces, such as the quorums of the copies.

    Raises:
        The errors of ``open_namespace`` for both namespaces, and of ``Namespace.promote_log``.
    """
    done = []
    async with open_namespace(source, config=config) as namespace:
        names = await namespace.list_logs() if logs is None else list(logs)
        for name in names:
            if logs is None and to is None and await namespace.promotion(name) is None:
                continue
            done.append(
                await namespace.promote_log(
                    name, to, keep_target_policy=keep_target_policy, on_progress=on_progress
                )
            )
    return done
