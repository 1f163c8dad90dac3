"""The nodes below the ledgers root of a metadata store: their names, and the paths of ledger ids.

layout                digits  path below the root
flat                      10  L<digits>
legacy hierarchical       10  dd/dddd/Ldddd
hierarchical                  as legacy below id 2147483647, as long from that id on; the default
long hierarchical         19  ddd/dddd/dddd/dddd/Ldddd

Inside: encoding and decoding names. Not inside: listing (``catalog``), the data of the nodes.
Always: a path that no layout produces has no ledger id, so a foreign node below the root never counts as a
ledger.

Source: StringUtils.java, LedgerLayout.java, the ledger managers in org.apache.bookkeeper.meta;
docs/metadata.md 2, 3, 8, 9, 12.
"""

from __future__ import annotations

import enum
import re

from ledger.errors import LedgerMetadataError, MetadataFormatError

LEDGER_ID_MAX = 2**63 - 1
SHORT_ID_LIMIT = 2**31 - 1  # the first id of the long tree; the short generator stops before it

# Children of the root.
LAYOUT = "LAYOUT"
INSTANCE_ID = "INSTANCEID"
AVAILABLE = "available"
READONLY = "available/readonly"
READONLY_NAME = "readonly"  # a child of AVAILABLE, beside the bookies
COOKIES = "cookies"
IDGEN = "idgen"
IDGEN_LONG = "idgen-long"
DISABLE_HEALTH_CHECK = "disableHealthCheck"
RESTORED = "RESTORED"  # ours: a restored cluster, whose bookies delete no ledger
UNDERREPLICATION = "underreplication"
UNDERREPLICATION_LAYOUT = "underreplication/LAYOUT"
UNDERREPLICATION_LEDGERS = "underreplication/ledgers"
UNDERREPLICATION_LOCKS = "underreplication/locks"
UNDERREPLICATION_DISABLE = "underreplication/disable"
LOST_BOOKIE_RECOVERY_DELAY = "underreplication/lostBookieRecoveryDelay"
CHECK_ALL_LEDGERS_CTIME = "underreplication/checkallledgersctime"
PLACEMENT_POLICY_CHECK_CTIME = "underreplication/placementpolicycheckctime"
REPLICAS_CHECK_CTIME = "underreplication/replicascheckctime"
AUDITOR_ELECTION = "underreplication/auditorelection"
BALANCE = "underreplication/dlogbalance"  # ours: the program that balances the bookies, and its progress

# Prefixes of sequence nodes.
ID_PREFIX = "ID-"
HIGH_ORDER_PREFIX = "HOB-"
VOTE_PREFIX = "V_"

_FACTORY_PACKAGE = "org.apache.bookkeeper.meta."
_MANAGER_VERSION = 1
_FLAT_ID_MAX = 10**10 - 1
_FLAT = re.compile(r"L([0-9]{10})", re.ASCII)
_SHORT = re.compile(r"([0-9]{2})/([0-9]{4})/L([0-9]{4})", re.ASCII)
_LONG = re.compile(r"([0-9]{3})/([0-9]{4})/([0-9]{4})/([0-9]{4})/L([0-9]{4})", re.ASCII)
_BOOKIE_ID = re.compile(r"[a-zA-Z0-9:-_.\-]+", re.ASCII)  # ":-_" is a range, as in BookieId.java


class Layout(enum.Enum):
    """How ledger ids become paths. The value is the name of Java's factory."""

    FLAT = "FlatLedgerManagerFactory"
    LEGACY_HIERARCHICAL = "LegacyHierarchicalLedgerManagerFactory"
    HIERARCHICAL = "HierarchicalLedgerManagerFactory"
    LONG_HIERARCHICAL = "LongHierarchicalLedgerManagerFactory"

    @property
    def text(self) -> bytes:
        """The data of the LAYOUT node, in its format version 2."""
        return f"2\n{_FACTORY_PACKAGE}{self.value}:{_MANAGER_VERSION}".encode()

    @property
    def uri_name(self) -> str | None:
        """The name after the ``+`` in a metadata service URI; None for the legacy layout, which has none."""
        return _URI_NAMES.get(self)


_URI_NAMES = {
    Layout.FLAT: "flat",
    Layout.HIERARCHICAL: "hierarchical",
    Layout.LONG_HIERARCHICAL: "longhierarchical",
}
LAYOUT_OF_URI_NAME = {layout.uri_name: layout for layout in Layout if layout.uri_name}
_OF_TYPE_NAME = {"flat": Layout.FLAT, "hierarchical": Layout.HIERARCHICAL}  # LAYOUT format version 1


def decode_layout(data: bytes) -> Layout:
    """The layout that a LAYOUT node names, in format version 1 or 2, with or without a shading prefix.

    Raises:
        MetadataFormatError: The layout does not parse or is unknown, so its ledgers cannot be found. Do not
            write another layout over it.
    """
    lines = data.decode("ascii", "replace").split("\n")
    if len(lines) < 2 or lines[0] not in ("1", "2"):
        raise MetadataFormatError(
            f"LAYOUT node {data[:120]!r}: expected format version 1 or 2 and a ledger manager"
        )
    name, colon, version = lines[1].partition(":")
    if not colon or version != str(_MANAGER_VERSION):
        raise MetadataFormatError(
            f"LAYOUT node {data[:120]!r}: the version of the ledger manager is not {_MANAGER_VERSION}"
        )
    if lines[0] == "1":
        layout = _OF_TYPE_NAME.get(name)
    else:
        # Shaded clients wrote a prefix such as "dlshade." before the class name.
        found = [known for known in Layout if f".{name}".endswith(f".{_FACTORY_PACKAGE}{known.value}")]
        layout = found[0] if found else None
    if layout is None:
        raise MetadataFormatError(f"LAYOUT node {data[:120]!r}: unknown ledger manager {name!r}")
    return layout


def ledger_path(root: str, layout: Layout, ledger_id: int) -> str:
    """The node that holds the metadata of a ledger.

    Raises:
        LedgerMetadataError: The layout cannot hold this id.
    """
    if layout is Layout.HIERARCHICAL:
        layout = Layout.LEGACY_HIERARCHICAL if ledger_id < SHORT_ID_LIMIT else Layout.LONG_HIERARCHICAL
    id_max = LEDGER_ID_MAX if layout is Layout.LONG_HIERARCHICAL else _FLAT_ID_MAX
    if not 0 <= ledger_id <= id_max:
        raise LedgerMetadataError(f"ledger id {ledger_id}: the {layout.name} layout holds 0 to {id_max}")
    if layout is Layout.FLAT:
        return f"{root}/L{ledger_id:010d}"
    if layout is Layout.LEGACY_HIERARCHICAL:
        digits = f"{ledger_id:010d}"
        return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def ledger_id_of(root: str, path: str) -> int | None:
    """The ledger whose metadata node is ``path``, in any layout; None if it is no such path."""
    if not path.startswith(f"{root}/"):
        return None
    below = path[len(root) + 1 :]
    for pattern in (_SHORT, _LONG, _FLAT):
        if match := pattern.fullmatch(below):
            ledger_id = int("".join(match.groups()))
            return ledger_id if ledger_id <= LEDGER_ID_MAX else None
    return None


def is_ledger_parent(layout: Layout, name: str) -> bool:
    """Whether a child of the root with this name is part of the ledger tree of a layout."""
    if not name.isascii():
        return False
    match layout:
        case Layout.FLAT:
            return _FLAT.fullmatch(name) is not None
        case Layout.LEGACY_HIERARCHICAL:
            return name.isdigit() and len(name) == 2
        case Layout.LONG_HIERARCHICAL:
            return name.isdigit() and len(name) == 3
        case Layout.HIERARCHICAL:
            return name.isdigit() and len(name) in (2, 3)


def check_bookie_id(bookie: str) -> None:
    """Check a bookie id, which names the nodes of the bookie and the bookie in every ensemble.

    Raises:
        LedgerMetadataError: It has other characters than letters, digits and ``.:;<=>?@[\\]^_-``, or is
            ``readonly``, which is the name of another node.
    """
    if not _BOOKIE_ID.fullmatch(bookie) or bookie.lower() == READONLY_NAME:
        raise LedgerMetadataError(f"{bookie!r} cannot be a bookie's id")


def available_path(root: str, bookie: str) -> str:
    """The ephemeral node of a writable bookie."""
    return f"{root}/{AVAILABLE}/{bookie}"


def readonly_path(root: str, bookie: str) -> str:
    """The ephemeral node of a read-only bookie."""
    return f"{root}/{READONLY}/{bookie}"


def cookie_path(root: str, bookie: str) -> str:
    """The node of a bookie's cookie."""
    return f"{root}/{COOKIES}/{bookie}"


def id_prefix(root: str, layout: Layout) -> str:
    """The path prefix of a sequence node that draws a (short) ledger id."""
    return f"{root}/{ID_PREFIX}" if layout is Layout.FLAT else f"{root}/{IDGEN}/{ID_PREFIX}"


def long_id_prefix(root: str, high_order: int) -> str:
    """The path prefix of a sequence node that draws the low half of a long ledger id."""
    return f"{root}/{IDGEN_LONG}/{HIGH_ORDER_PREFIX}{high_order:010d}/{ID_PREFIX}"


def id_series_of(name: str) -> int | None:
    """The high half of the ids that a child of ``idgen-long`` stands for; None if it stands for none."""
    digits = name.removeprefix(HIGH_ORDER_PREFIX)
    if digits == name or not (digits.isascii() and digits.isdigit() and len(digits) == 10):
        return None
    series = int(digits)
    return series if series < 2**31 else None  # an id has 63 bits


def underreplicated_path(root: str, ledger_id: int) -> str:
    """The node that marks a ledger as under-replicated."""
    digits = f"{ledger_id:016x}"
    parent = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{root}/{UNDERREPLICATION_LEDGERS}/{parent}/urL{ledger_id:010d}"


def underreplicated_lock_path(root: str, ledger_id: int) -> str:
    """The ephemeral node that a process holds while it re-replicates a ledger."""
    return f"{root}/{UNDERREPLICATION_LOCKS}/urL{ledger_id:010d}"


def underreplicated_id_of(name: str) -> int | None:
    """The ledger of an under-replication mark or lock, by the name of the node; None if it is neither."""
    digits = name[3:]
    if name[:3] != "urL" or not (digits.isascii() and digits.isdigit() and 10 <= len(digits) <= 19):
        return None
    return int(digits)
