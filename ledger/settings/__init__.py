"""What the settings of a client and the keys of a bookie have in common.

Inside: the kinds of values, and the row that declares a setting once.
Not inside: the tables (``dlog.settings.table``, ``bookie.config``), and what reads a file.
Begin at ``row``.
"""

from ledger.settings.kinds import NONE, Kind, shown
from ledger.settings.row import SettingRow, default_of

__all__ = ["NONE", "Kind", "SettingRow", "default_of", "shown"]
