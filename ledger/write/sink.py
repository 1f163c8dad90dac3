"""What the transport calls with the replies to a writer's adds.

Inside: the two methods. Not inside: what the writer does then (``handle``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from ledger.codes import Code


@attrs.frozen(eq=False)
class Sink:
    """The methods that the transport calls; an application does not see them as methods of the handle."""

    on_add_replies: Callable[[str, Code, Sequence[int]], None]
    on_bookie_lost: Callable[[str, Exception], None]
