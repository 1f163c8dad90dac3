"""Operations and result codes, with their numbers in both protocol versions.

Other modules use these enums. The numbers appear only here and in the codecs.

Source: BookieProtocol.java, BookkeeperProtocol.proto.
"""

from __future__ import annotations

import enum

MASTER_KEY_BYTES = 20


class Operation(enum.Enum):
    """The operation of a request. The value is its version 3 number."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    RANGE_READ_ENTRY = 3  # never implemented by any bookie: BAD_REQUEST
    RANGE_ADD_ENTRY = 4  # never implemented either
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    LIST_ENTRIES = 11
    BATCH_READ_ENTRY = 12


OPCODES_V2 = {
    Operation.ADD_ENTRY: 1,
    Operation.READ_ENTRY: 2,
    Operation.AUTH: 3,
    Operation.BATCH_READ_ENTRY: 7,
}
OPERATION_OF_OPCODE_V2 = {opcode: operation for operation, opcode in OPCODES_V2.items()}


class Code(enum.Enum):
    """The result code of a reply. The value is its version 3 number; ``CODES_V2`` has those of version 2."""

    OK = 0
    NO_LEDGER = 402
    NO_ENTRY = 403
    BAD_REQUEST = 404
    IO_ERROR = 501
    UNAUTHORIZED = 502
    BAD_VERSION = 503
    FENCED = 504
    READ_ONLY = 505
    TOO_MANY_REQUESTS = 506
    UNKNOWN_LEDGER_STATE = 507


CODES_V2 = {
    Code.OK: 0,
    Code.NO_LEDGER: 1,
    Code.NO_ENTRY: 2,
    Code.BAD_REQUEST: 100,
    Code.IO_ERROR: 101,
    Code.UNAUTHORIZED: 102,
    Code.BAD_VERSION: 103,
    Code.FENCED: 104,
    Code.READ_ONLY: 105,
    Code.TOO_MANY_REQUESTS: 106,
    Code.UNKNOWN_LEDGER_STATE: 107,
}
CODE_OF_V2 = {number: code for code, number in CODES_V2.items()}
