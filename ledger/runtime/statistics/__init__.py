"""What a program's use of its ledgers and logs amounts to: counters by name,
histograms of times, and spans.

Inside: the recorder that the parts of a client share, its snapshot, the text format of Prometheus, which the
bookie's ``/metrics`` uses too. Not inside: the names of the logs' counters (``dlog.statistics_names``).
Begin with ``recorder``.
"""

from ledger.runtime.statistics.histogram import Histogram
from ledger.runtime.statistics.recorder import Recorder
from ledger.runtime.statistics.snapshot import Statistics

__all__ = ["Histogram", "Recorder", "Statistics"]
