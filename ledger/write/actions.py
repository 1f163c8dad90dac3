"""The actions that the machines of a writer return, for the handle to perform.

Inside: one class for each action. Not inside: the decisions (``repair``), the adds to send (``SendAdds`` of
``writer``), performing (``handle``, ``repair_steps``).
Always: an action is frozen; it holds all that performing it needs, or says where to ask.

Source: LedgerHandle.java; docs/protocol.md 5.4 to 5.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from ledger.errors import LedgerError
from ledger.write.ensemble_change import EnsembleChange
from ledger.write.writer import SendAdds

if TYPE_CHECKING:
    from ledger.catalog.catalog import Versioned

MakeError = Callable[[], LedgerError]
"""A new exception at each call: one object raised in several tasks would mix their tracebacks."""


@attrs.frozen
class Confirm:
    """These entries are confirmed: wake their callers."""

    entry_ids: range


@attrs.frozen
class Suspect:
    """This bookie began to fail: the client prefers other bookies for a while."""

    bookie: str


@attrs.frozen
class Warn:
    """Log this about the ledger."""

    message: str


@attrs.frozen
class Adopt:
    """The metadata store has the new ensemble. These are the ledger's metadata now."""

    current: Versioned


@attrs.frozen
class End:
    """The writer has ended."""

    make_error: MakeError


@attrs.frozen
class BeginRepair:
    """Call ``on_repair_due`` soon. Bookies that fail at the same moment are then replaced together."""


@attrs.frozen
class ChooseReplacements:
    """Choose other bookies for the failing ones; report with ``on_replacements_chosen``."""

    ensemble: tuple[str, ...]
    failed: frozenset[int]
    tried: tuple[str, ...]  # bookies that failed this writer, the last one last
    allow_quarantined: bool  # half of the retry timeout is over


@attrs.frozen
class WriteChange:
    """Write the change to the metadata store; report with ``on_ensemble_changed`` or ``on_change_failed``."""

    change: EnsembleChange
    connections: Mapping[str, int | None] = attrs.field(hash=False)  # of the new bookies, before the write


@attrs.frozen
class Wait:
    """Wait until the list of bookies changes, but no longer than this; report with ``on_waited``."""

    pause_s: float
    failing: frozenset[int]


@attrs.frozen
class Probe:
    """Ask a failing bookie whether it is alive; report with ``on_probe_answered``."""

    index: int
    bookie: str
    timeout_s: float


@attrs.frozen
class ReadMetadata:
    """Read the newest metadata; report with ``on_metadata_read`` or ``on_metadata_read_failed``."""

    pause_s: float  # wait for this long first


Step = BeginRepair | ChooseReplacements | WriteChange | Wait | Probe | ReadMetadata
"""An action that takes time. It has an outcome to report."""

Action = SendAdds | Confirm | Suspect | Warn | Adopt | End | Step
