"""Writing one ledger: the entries of its only writer, from submission to acknowledgement.

Inside: entry ids, counting of acknowledgements, the LAC, ensemble changes, closing.
Not inside: connections (``ledger.transport``), the end of a ledger without a writer (``ledger.recovery``).
Entry points: ``WriteHandle`` and ``AdvWriteHandle``.
"""

from ledger.write.adv_handle import AdvWriteHandle
from ledger.write.handle import WriteHandle

__all__ = ["AdvWriteHandle", "WriteHandle"]
