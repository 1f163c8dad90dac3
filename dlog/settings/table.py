"""The table of all client settings. Everything else is derived from it.

Inside: each setting once: name, kind, where it applies, meaning. The default is that of the class that has
the setting. Derived: keys of the file, variables, keys of a URI's query, options of Spark, ``dlog config
show``, docs/settings.md.
Not inside: reading values (``sources``), the classes (``dlog.config``, ``ledger.placement.config``,
``ledger.transport.bookie_security``, ``ledger.metadata_store.zookeeper_security``).
Always: no setting holds a secret; a secret is named by its file.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from dlog.config import HealConfig, NamespaceConfig, ReaderConfig, WriterConfig
from dlog.format.compression import Compression
from ledger.digest import DigestType
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.settings import SettingRow, kinds
from ledger.transport.bookie_security import BookieSecurity


class Applies(enum.Enum):
    """The kinds of namespace that a setting has an effect on."""

    EVERYWHERE = "every namespace"
    CLUSTER = "distributedlog:"
    DIRECTORY = "file:"
    COMMANDS = "commands"


SECTIONS: Mapping[str, type] = {
    "": NamespaceConfig,
    "writer": WriterConfig,
    "reader": ReaderConfig,
    "heal": HealConfig,
    "placement": PlacementConfig,
    "bookies": BookieSecurity,
    "zookeeper": ZooKeeperSecurity,
}


@attrs.frozen(eq=False)
class Setting(SettingRow):
    """One setting. Its name is also the key in a file and in a URI's query."""

    applies: Applies = Applies.EVERYWHERE

    @property
    def section(self) -> str:
        """The table of the file; empty for the top."""
        return self.name.rpartition(".")[0]

    @property
    def key(self) -> str:
        """The key in its table: the attribute of the class, for a setting that is one."""
        return self.name.rpartition(".")[2]

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.replace(".", "_").upper()

    @property
    def attribute(self) -> Any:
        """The attribute of the section's class; None for a setting that names a file or a place."""
        fields = attrs.fields_dict(SECTIONS[self.section])
        return None if self.name in FILES_AND_PLACES else fields[self.key]


PREFIX = "DLOG_"
# These have no attribute of the same meaning: their files are read, or they choose the namespace.
FILES_AND_PLACES = ("uri", "key_file", "password_file", "bookie_security", "zk_security")

_CLUSTER, _DIRECTORY = Applies.CLUSTER, Applies.DIRECTORY
_DIGESTS = {one.name: one for one in (DigestType.CRC32C, DigestType.CRC32, DigestType.MAC)}

_TOP = (
    Setting("uri", kinds.TEXT, "The namespace of commands without `--uri`.", Applies.COMMANDS),
    Setting("ensemble_size", kinds.COUNT, "Bookies that hold a segment.", _CLUSTER),
    Setting("write_quorum", kinds.COUNT, "Copies of each entry.", _CLUSTER),
    Setting("ack_quorum", kinds.COUNT, "A record is durable when this many copies are on disk.", _CLUSTER),
    Setting(
        "digest_type",
        kinds.choice(_DIGESTS),
        "The checksum of entries. Default: CRC32 if Apache's programs share the namespace, else CRC32C.",
    ),
    Setting(
        "password_file",
        kinds.FILE,
        "A file whose first line is the password of new ledgers. Default: a random one for each ledger, or"
        " the empty one if Apache's programs share the namespace.",
    ),
    Setting(
        "compression",
        kinds.choice({one.name.lower(): one for one in Compression}),
        "The compression of entries.",
    ),
    Setting(
        "key_file",
        kinds.FILE,
        "A file with keys: writers encrypt payloads and readers decrypt them. Only its owner may read it.",
    ),
    Setting(
        "shared_with_java",
        kinds.BOOL,
        "Apache's programs read the namespace. Default: true for `distributedlog:`.",
    ),
    Setting("create", kinds.BOOL, "Bind a namespace without a binding to `ledgers_root`.", _CLUSTER),
    Setting("ledgers_root", kinds.TEXT, "For `create`: the root path of the cluster's ledgers.", _CLUSTER),
    Setting(
        "sub_namespace_logs_max",
        kinds.COUNT,
        "In a federated namespace, a new log goes to a sub-namespace that has fewer.",
        _CLUSTER,
    ),
    Setting("client_id", kinds.TEXT, "The lock owner's name that others see. Default: host and process id."),
    Setting(
        "principal",
        kinds.TEXT,
        "This program's name in the namespace's policy. Default: the user of ZooKeeper's session, else of"
        " the system.",
    ),
    Setting(
        "owner_address",
        kinds.TEXT,
        "HOST, HOST:PORT or HOST:FIRST-LAST: where others reach this program while it owns a shared log;"
        " `none`: it never owns one.",
        _CLUSTER,
    ),
    Setting("session_timeout_ms", kinds.WHOLE_MILLISECONDS, "The session with ZooKeeper.", _CLUSTER),
    Setting(
        "connect_timeout_s",
        kinds.SECONDS,
        "How long to wait for ZooKeeper, and for enough bookies to write to.",
        _CLUSTER,
    ),
    Setting(
        "host_lock_timeout_s",
        kinds.SECONDS,
        "How long to wait for a process that holds the directory and does not serve it.",
        _DIRECTORY,
    ),
    Setting("wire_version", kinds.whole_choice(2, 3), "The bookies' protocol on the data path.", _CLUSTER),
    Setting(
        "add_quorum_timeout_s",
        kinds.optional(kinds.SECONDS),
        "An entry that is not durable after this long ends the segment.",
        _CLUSTER,
    ),
    Setting(
        "delay_ensemble_change",
        kinds.BOOL,
        "Replace a failing bookie only if records cannot become durable without it.",
        _CLUSTER,
    ),
    Setting("statistics", kinds.BOOL, "Measure how long operations take; see docs/observability.md."),
    Setting("tracing", kinds.BOOL, "Make spans of OpenTelemetry; see docs/observability.md."),
    Setting(
        "bookie_security",
        kinds.FILE,
        "A file with the settings of `[bookies]`, in place of them.",
        _CLUSTER,
    ),
    Setting(
        "zk_security", kinds.FILE, "A file with the settings of `[zookeeper]`, in place of them.", _CLUSTER
    ),
)

_WRITER = (
    Setting("writer.entry_bytes_target", kinds.BYTES, "The size of entries that records are batched into."),
    Setting("writer.record_bytes_max", kinds.BYTES, "The longest payload; above 1M it is cut into entries."),
    Setting(
        "writer.bytes_in_flight_max", kinds.BYTES, "`wait_capacity` waits while this much is not durable."
    ),
    Setting(
        "writer.linger_ms",
        kinds.MILLISECONDS,
        "Submitted records that no caller waits for gather for this long after the entry before.",
    ),
    Setting(
        "writer.visibility_delay_ms",
        kinds.MILLISECONDS,
        "After this long without a record, a control record makes the last ones visible.",
    ),
    Setting(
        "writer.keep_alive_s",
        kinds.optional(kinds.SECONDS),
        "After this long without an entry, a control record shows readers that the writer lives.",
    ),
    Setting("writer.segment_bytes_max", kinds.optional(kinds.BYTES), "A larger segment is rolled."),
    Setting("writer.segment_age_s_max", kinds.optional(kinds.SECONDS), "An older segment is rolled."),
    Setting(
        "writer.degraded_ensemble",
        kinds.BOOL,
        "With too few bookies, a segment begins with fewer, down to `ack_quorum`.",
        _CLUSTER,
    ),
    Setting("writer.lock_timeout_s", kinds.SECONDS, "How long opening waits for another writer's lock."),
    Setting("writer.retry_timeout_s", kinds.SECONDS, "Records fail after this long without a segment."),
    Setting("writer.retry_pause_s", kinds.SECONDS, "The first pause before a failed step is repeated."),
    Setting(
        "writer.reopen_timeout_s", kinds.SECONDS, "How long a writer with `reopen=True` tries to open again."
    ),
    Setting("writer.purge", kinds.BOOL, "Apply retention and delete truncated segments in the background."),
    Setting("writer.close_timeout_s", kinds.SECONDS, "How long closing may take."),
    Setting("writer.hash_chain", kinds.BOOL, "Keep a hash chain over the records, for `dlog verify`."),
    Setting(
        "writer.keys_and_headers",
        kinds.BOOL,
        "Take records with a key or headers. Default: true where Apache's programs do not read.",
    ),
)

_READER = (
    Setting("reader.read_bytes_max", kinds.BYTES, "The size of one read from a ledger."),
    Setting("reader.read_ahead_bytes_max", kinds.BYTES, "Reading pauses while this much is not decoded."),
    Setting(
        "reader.relist_interval_s",
        kinds.SECONDS,
        "An idle reader lists the segments again after it, later up to six times as rarely.",
    ),
    Setting(
        "reader.idle_timeout_s",
        kinds.optional(kinds.SECONDS),
        "A reader that waits fails after this long without an entry of the log.",
    ),
    Setting("reader.retry_timeout_s", kinds.SECONDS, "Reads that fail for this long end the reader."),
    Setting("reader.retry_pause_s", kinds.SECONDS, "The first pause before a failed read is repeated."),
    Setting("reader.check_positions", kinds.BOOL, "A gap in the positions of records is an error."),
)

_PLACEMENT = (
    Setting(
        "placement.policy",
        kinds.choice({one.value: one for one in PlacementPolicy}),
        "How the bookies of an ensemble are spread.",
        _CLUSTER,
    ),
    Setting("placement.locations", kinds.LOCATIONS, "Where the racks of bookies are read.", _CLUSTER),
    Setting("placement.local_location", kinds.TEXT, "The location of this program.", _CLUSTER),
    Setting("placement.racks_min", kinds.COUNT, "Racks that each write quorum should span.", _CLUSTER),
    Setting("placement.enforce_racks", kinds.BOOL, "Fail if fewer racks are spanned.", _CLUSTER),
    Setting(
        "placement.enforce_fault_domains",
        kinds.BOOL,
        "Confirm an entry only when its acknowledgements span `racks_min` racks.",
        _CLUSTER,
    ),
    Setting("placement.regions", kinds.NAMES, "Regions to write to.", _CLUSTER),
    Setting(
        "placement.regions_min",
        kinds.optional(kinds.COUNT),
        "Regions that must store an entry; it needs `placement.regions`.",
        _CLUSTER,
    ),
    Setting(
        "placement.enforce_regions_in_replace",
        kinds.BOOL,
        "Enforce that also when a bookie is replaced.",
        _CLUSTER,
    ),
    Setting("placement.regions_disallowed", kinds.NAMES, "Regions that are not used.", _CLUSTER),
    Setting("placement.weighted", kinds.BOOL, "Prefer bookies with more free disk.", _CLUSTER),
    Setting("placement.weight_multiple_max", kinds.NUMBER, "The largest weight, by the median.", _CLUSTER),
    Setting("placement.weight_interval_s", kinds.SECONDS, "How often free disk is asked for.", _CLUSTER),
    Setting("placement.weight_retry_s", kinds.SECONDS, "The same for a bookie that did not reply.", _CLUSTER),
    Setting(
        "placement.quarantine_errors_min",
        kinds.optional(kinds.COUNT),
        "So many errors in one interval quarantine a bookie.",
        _CLUSTER,
    ),
    Setting("placement.quarantine_interval_s", kinds.SECONDS, "That interval.", _CLUSTER),
    Setting("placement.quarantine_s", kinds.SECONDS, "How long a quarantine lasts.", _CLUSTER),
    Setting("placement.quarantine_ratio", kinds.NUMBER, "The probability of a quarantine.", _CLUSTER),
)

_HEAL = (
    Setting("heal.keep_s", kinds.SECONDS, "How long the old ledger of a healed segment is kept.", _CLUSTER),
)

_STORES = kinds.choice({one: one for one in ("PEM", "PKCS12", "JKS")})
_BOOKIES = (
    Setting("bookies.tls", kinds.BOOL, "Use TLS with bookies.", _CLUSTER),
    Setting(
        "bookies.tls_authorities",
        kinds.FILE,
        "The authorities of the bookies' certificates. Default: those of the system.",
        _CLUSTER,
    ),
    Setting("bookies.tls_authorities_type", _STORES, "The format of that file.", _CLUSTER),
    Setting("bookies.tls_authorities_password_file", kinds.FILE, "Its password, in a file.", _CLUSTER),
    Setting("bookies.tls_certificate", kinds.FILE, "The client's certificate chain, in PEM.", _CLUSTER),
    Setting("bookies.tls_key", kinds.FILE, "The client's private key.", _CLUSTER),
    Setting("bookies.tls_key_type", _STORES, "The format of that file.", _CLUSTER),
    Setting("bookies.tls_key_password_file", kinds.FILE, "Its password, in a file.", _CLUSTER),
    Setting("bookies.tls_check_hostname", kinds.BOOL, "A certificate must name the bookie's host.", _CLUSTER),
    Setting("bookies.auth", kinds.TEXT, "`sasl`, `token`, or a plug-in of another package.", _CLUSTER),
    Setting("bookies.username", kinds.TEXT, "The user, for `sasl`.", _CLUSTER),
    Setting("bookies.password_file", kinds.FILE, "The user's password, in a file.", _CLUSTER),
    Setting("bookies.jaas_file", kinds.FILE, "A JAAS file, in place of user and password.", _CLUSTER),
    Setting("bookies.jaas_section", kinds.TEXT, "The section of that file.", _CLUSTER),
    Setting("bookies.token_file", kinds.FILE, "The token, in a file.", _CLUSTER),
    Setting("bookies.auth_settings", kinds.TABLE, "The settings of another package's plug-in.", _CLUSTER),
)

_ZOOKEEPER = (
    Setting(
        "zookeeper.scheme", kinds.choice({one: one for one in ("sasl", "digest")}), "The scheme.", _CLUSTER
    ),
    Setting("zookeeper.username", kinds.TEXT, "The user of sessions.", _CLUSTER),
    Setting("zookeeper.password_file", kinds.FILE, "The user's password, in a file.", _CLUSTER),
    Setting(
        "zookeeper.acl",
        kinds.choice({one: one for one in ("creator", "open")}),
        "Who may use the nodes that a session creates. Default: `creator` with a user.",
        _CLUSTER,
    ),
    Setting("zookeeper.tls", kinds.BOOL, "Use TLS with ZooKeeper.", _CLUSTER),
    Setting(
        "zookeeper.tls_authorities",
        kinds.FILE,
        "The authorities of the server's certificate, in PEM. Default: those of the system.",
        _CLUSTER,
    ),
    Setting("zookeeper.tls_certificate", kinds.FILE, "The client's certificate chain, in PEM.", _CLUSTER),
    Setting("zookeeper.tls_key", kinds.FILE, "The client's private key, in PEM.", _CLUSTER),
    Setting("zookeeper.tls_key_password_file", kinds.FILE, "Its password, in a file.", _CLUSTER),
    Setting("zookeeper.tls_check_hostname", kinds.BOOL, "The certificate must name the host.", _CLUSTER),
)

SETTINGS: Mapping[str, Setting] = {
    one.name: one for one in (*_TOP, *_WRITER, *_READER, *_HEAL, *_PLACEMENT, *_BOOKIES, *_ZOOKEEPER)
}
BY_VARIABLE: Mapping[str, Setting] = {one.variable: one for one in SETTINGS.values()}

# Keys that would hold a secret, and the setting that names its file.
SECRETS: Mapping[str, str] = {
    "password": "password_file",
    "key": "key_file",
    "keys": "key_file",
    "encryption": "key_file",
    "writer.encryption": "key_file",
    "reader.encryption": "key_file",
    "bookies.password": "bookies.password_file",
    "bookies.token": "bookies.token_file",
    "bookies.tls_key_password": "bookies.tls_key_password_file",
    "bookies.tls_authorities_password": "bookies.tls_authorities_password_file",
    "zookeeper.password": "zookeeper.password_file",
    "zookeeper.tls_key_password": "zookeeper.tls_key_password_file",
}
