"""The objects a caller of ``LedgerClient`` holds."""

from ledger.adv_handle import AdvWriteHandle
from ledger.read_handle import ReadHandle
from ledger.write_handle import WriteHandle

__all__ = ["AdvWriteHandle", "ReadHandle", "WriteHandle"]
