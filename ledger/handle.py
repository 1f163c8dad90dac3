"""The handles that ``LedgerClient`` returns."""

from ledger.read.handle import ReadHandle
from ledger.write.adv_handle import AdvWriteHandle
from ledger.write.handle import WriteHandle

__all__ = ["AdvWriteHandle", "ReadHandle", "WriteHandle"]
