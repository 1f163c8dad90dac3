"""Work on the directories of a stopped bookie: building its index again, and emptying it.

Inside: a new index from the entry logs, in place at the end; a format that keeps nothing.
Not inside: the offsets that a damaged entry log still gives (``bookie.damage``), the commands (``dlog.cli``).
Always: a power cut at any step leaves the old state, or one from which the same command continues.
"""

from bookie.offline.directory_format import format_directories
from bookie.offline.index_rebuild import rebuild_indexes

__all__ = ["format_directories", "rebuild_indexes"]
