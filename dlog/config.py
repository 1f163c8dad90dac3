"""Settings of a namespace, its writers and its readers; all have safe defaults.

Inside: the settings as a program gives them. Not inside: files, variables and URIs that give settings
(``dlog.settings``).
Always: a setting that Apache's programs cannot read in a shared namespace is refused by name
(``for_scheme``), not ignored; a configuration knows which settings its caller named
(``given_settings``).

Source: DistributedLog, DistributedLogConfiguration.java (names in the field docstrings),
docs/stream-format.md 9.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Literal, Self

import attrs
from attrs.validators import ge, gt, in_, instance_of, le, optional

from dlog.encryption import KeyProvider
from dlog.errors import ConfigError
from dlog.format.compression import Compression
from dlog.format.envelope import ENTRY_BODY_BYTES_MAX
from dlog.format.large_record import LARGE_RECORD_BYTES_MAX
from dlog.format.record import PAYLOAD_BYTES_MAX
from ledger.auth.auth import AuthFactory
from ledger.digest import DigestType
from ledger.ledger_spec import LedgerSpec
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity
from ledger.placement.config import PlacementConfig, PlacementPolicy
from ledger.settings import default_of
from ledger.transport.bookie_security import BookieSecurity
from namespace.owner_address import LOOPBACK, parse_listen_at

_POSITIVE_OR_NONE: Any = optional(gt(0))


class _KnowsItsArguments:
    """Remembers the names of the arguments, so that weaker places may give the other settings."""

    __slots__ = ("_arguments",)
    _arguments: frozenset[str]

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_arguments", frozenset(settings))  # the subclasses are frozen
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, None]]:
        """Make a pickle and a copy keep the names of the arguments; ``__new__`` reads no value."""
        return (), dict.fromkeys(self._arguments)


@attrs.frozen(kw_only=True)
class WriterConfig(_KnowsItsArguments):
    """How a writer batches and rolls, and its timeouts."""

    entry_bytes_target: int = attrs.field(default=65_536, validator=gt(0))
    """Waiting records are cut into entries of about this size (``writerOutputBufferSize``)."""
    record_bytes_max: int = attrs.field(
        default=PAYLOAD_BYTES_MAX, validator=[gt(0), le(LARGE_RECORD_BYTES_MAX)]
    )
    """A longer payload is refused. A record with more than ``PAYLOAD_BYTES_MAX`` bytes, up to 64 MiB, is cut
    into several entries, and our readers join it. Apache's readers cannot read it, so it is refused in a
    namespace shared with them. The writer and each reader hold a whole record in memory."""
    bytes_in_flight_max: int = attrs.field(default=16 * 1024 * 1024, validator=gt(0))
    """``wait_capacity`` waits while this many submitted bytes are not durable; ``submit`` refuses a record at
    four times as many. Each record counts 276 bytes besides its own: its header, and what holds it."""
    linger_ms: float = attrs.field(default=0.0, validator=ge(0))
    """Records that no caller waits for are sent this long after the entry before, at the earliest, so that
    they share an entry. It saves CPU and delays readers. 0: they are sent as soon as no entry is in
    flight."""
    visibility_delay_ms: float = attrs.field(default=5.0, validator=ge(0))
    """A writer that is idle for this long adds a control record, so that readers see the last records."""
    keep_alive_s: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """A writer that has sent nothing for this long adds a control record, so that readers know that it lives
    (``periodicKeepAliveMilliSeconds``). It begins with the writer's first record. None: never."""
    segment_bytes_max: int | None = attrs.field(default=256 * 1024 * 1024, validator=_POSITIVE_OR_NONE)
    """A segment with more bytes is rolled (``maxLogSegmentBytes``)."""
    segment_age_s_max: float | None = attrs.field(default=7200.0, validator=_POSITIVE_OR_NONE)
    """A segment in use for longer is rolled (``logSegmentRollingMinutes``)."""
    degraded_ensemble: bool = attrs.field(default=True, validator=instance_of(bool))
    """With fewer bookies than ``ensemble_size``, a segment begins with those that are there, down to the ack
    quorum, and is rolled once all have been there for some seconds. False, as in Apache's writers: a new
    segment waits for the bookies."""
    lock_timeout_s: float = attrs.field(default=30.0, validator=ge(0))
    """How long opening a writer waits for another one to release the lock (``lockTimeoutSeconds``); 0: not at
    all."""
    retry_timeout_s: float = attrs.field(default=60.0, validator=ge(0))
    """Records fail after this long without a segment to write to (bookies or metadata out of reach)."""
    retry_pause_s: float = attrs.field(default=0.2, validator=gt(0))
    """The pause before a failed step of the writer is repeated. It doubles up to 16-fold."""
    reopen_timeout_s: float = attrs.field(default=300.0, validator=ge(0))
    """How long ``open_writer(reopen=True)`` tries to open a writer again that has stopped, counted from the
    first failure since a record became durable. The pauses begin with ``retry_pause_s`` and double up to 10
    s."""
    purge: bool = True
    """Apply the log's retention, and delete truncated segments and their ledgers, in the background: when the
    writer opens, truncates or rolls, and every minute. False leaves that to ``Namespace.retention.apply`` and
    ``Namespace.purge_log``."""
    close_timeout_s: float = attrs.field(default=15.0, validator=gt(0))
    """How long leaving ``async with`` may take. Then the next writer's recovery finishes the rest."""
    hash_chain: bool = False
    """Keep a hash chain over the records, for ``dlog verify``. Set it for every writer of the log."""
    keys_and_headers: bool | None = attrs.field(default=None, validator=in_((None, True, False)))
    """Take records with a key or headers. Apache's readers get such records without them. None: only where
    Apache's programs do not read (``shared_with_java``)."""
    encryption: KeyProvider | None = attrs.field(default=None, repr=False)
    """Encrypt each payload with the provider's current key (``dlog.encryption``). Apache's readers get the
    encrypted bytes."""

    def __attrs_post_init__(self) -> None:
        if self.entry_bytes_target > ENTRY_BODY_BYTES_MAX:
            raise ConfigError(
                f"entry_bytes_target={self.entry_bytes_target}: an entry takes at most"
                f" {ENTRY_BODY_BYTES_MAX} bytes"
            )

    def over(self, weaker: WriterConfig) -> WriterConfig:
        """These settings; those that the caller did not give are the weaker ones."""
        return attrs.evolve(weaker, **{name: getattr(self, name) for name in given_settings(self)})

    def check_shared(self) -> None:
        """Check these settings for a namespace that Apache's programs read.

        Raises:
            ConfigError: They cannot read what a writer would write.
        """
        if self.record_bytes_max > PAYLOAD_BYTES_MAX:
            raise ConfigError(
                f"record_bytes_max={self.record_bytes_max}: Apache's readers cannot read a record of more"
                f" than {PAYLOAD_BYTES_MAX} bytes; leave it out, or say shared_with_java=False if none"
                " will ever read this namespace"
            )


@attrs.frozen(kw_only=True)
class ReaderConfig(_KnowsItsArguments):
    """How far a reader reads ahead, and its timeouts."""

    read_bytes_max: int = attrs.field(default=512 * 1024, validator=gt(0))
    """The size of one read from a ledger."""
    read_ahead_bytes_max: int = attrs.field(default=4 * 1024 * 1024, validator=gt(0))
    """Reading pauses while fetched entries of this many bytes are not decoded yet."""
    relist_interval_s: float = attrs.field(default=10.0, validator=gt(0))
    """A reader that is idle for this long lists the segments again, as a watch may be lost
    (``readerIdleWarnThresholdMillis``). While nothing changes, the interval doubles, up to six times this."""
    retry_timeout_s: float = attrs.field(default=60.0, validator=ge(0))
    """The reader raises ``LogReaderStalledError`` after reads have failed for this long."""
    idle_timeout_s: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """A reader that waits raises ``LogReaderIdleError`` after this long without an entry of the log
    (``readerIdleErrorThresholdMillis``). Make it several times the writer's ``keep_alive_s``. None: never."""
    retry_pause_s: float = attrs.field(default=0.1, validator=gt(0))
    """The pause before a failed read is tried again. It doubles up to 16-fold."""
    check_positions: bool = True
    """True: a gap in the positions of records is an error (``positionGapDetectionEnabled``)."""
    encryption: KeyProvider | None = attrs.field(default=None, repr=False)
    """Decrypt each payload; a record that is not encrypted is a ``DecryptionError``. None: return payloads as
    they are stored."""


@attrs.frozen(kw_only=True)
class HealConfig:
    """How segments that began on fewer bookies get all their replicas."""

    keep_s: float = attrs.field(default=86_400.0, validator=ge(0))
    """How long the old ledger of a healed segment is kept, for readers that have it open."""


@attrs.frozen(kw_only=True)
class NamespaceConfig(_KnowsItsArguments):
    """How a namespace stores its logs."""

    ensemble_size: int = attrs.field(default=3, validator=gt(0))
    """Bookies that hold a segment (``bkcEnsembleSize``); a directory has one."""
    write_quorum: int = attrs.field(default=3, validator=gt(0))
    """Copies of each entry (``bkcWriteQuorumSize``)."""
    ack_quorum: int = attrs.field(default=2, validator=gt(0))
    """A record is durable when this many copies are synced to disk (``bkcAckQuorumSize``)."""
    digest_type: DigestType | None = attrs.field(default=None, validator=optional(instance_of(DigestType)))
    """The checksum of entries. None: CRC32 in a namespace shared with Apache's programs, which know no other;
    else CRC32C."""
    password: bytes | None = attrs.field(default=None, validator=optional(instance_of(bytes)), repr=False)
    """The password of new ledgers (``digestPw``). None: a random one for each ledger, in its metadata; in a
    namespace shared with Apache's programs the empty one, since they open all ledgers with one password."""
    compression: Compression = attrs.field(default=Compression.NONE, validator=instance_of(Compression))
    """The compression of entries (``compressionType``)."""
    shared_with_java: bool | None = attrs.field(default=None, validator=in_((None, True, False)))
    """True if Apache's programs read the namespace. None: yes for ``distributedlog://``, no for
    ``file://``."""
    create: bool = False
    """Bind a ``distributedlog://`` namespace without a binding to ``ledgers_root`` on the same ZooKeeper."""
    ledgers_root: str = "/ledgers"
    """For ``create``: the root path of the cluster's ledgers."""
    sub_namespace_logs_max: int = attrs.field(default=15_000, validator=gt(0))
    """In a federated namespace, a new log goes to a sub-namespace that has fewer
    (``federatedMaxLogsPerSubnamespace``)."""
    client_id: str | None = None
    """The name of the lock's owner that other clients see; default: host and process id."""
    principal: str | None = attrs.field(default=None, validator=optional(instance_of(str)))
    """The name under which the namespace's policy knows this program. None: the user of the session with
    ZooKeeper, else the user of the operating system."""
    owner_address: str = attrs.field(default=LOOPBACK, validator=instance_of(str))
    """Where this program takes the records of others while it owns a log in a cluster
    (``open_writer(shared=True)``): ``HOST``, ``HOST:PORT`` or ``HOST:FIRST-LAST``, at which they reach it.
    Each log has a port of its own. The default is for programs on one machine. ``none``: it never owns a log
    that it shares, but forwards to other programs, such as ``dlog proxy``."""
    session_timeout_ms: int = attrs.field(default=10_000, validator=gt(0))
    connect_timeout_s: float = attrs.field(default=10.0, validator=gt(0))
    """How long to wait for ZooKeeper. A writer that begins waits as long for enough writable bookies."""
    host_lock_timeout_s: float = attrs.field(default=30.0, validator=ge(0))
    """For a directory: how long to wait for a process that holds ``host.lock`` and does not serve."""
    wire_version: Literal[2, 3] = attrs.field(default=2, validator=in_((2, 3)))
    """The bookies' protocol on the data path."""
    tls: ssl.SSLContext | None = attrs.field(default=None, validator=optional(instance_of(ssl.SSLContext)))
    """Use TLS with bookies (``tlsProviderFactoryClass``); made by ``ledger.auth.tls.client_context``."""
    auth: AuthFactory | None = attrs.field(default=None, repr=False)
    """Authenticate with bookies (``bookieAuthProviderFactoryClass``): ``ledger.SaslAuth``,
    ``ledger.TokenAuth`` or ``ledger.client_auth``."""
    bookie_security: BookieSecurity | None = attrs.field(
        default=None, validator=optional(instance_of(BookieSecurity))
    )
    """TLS and authentication with bookies, in place of ``tls`` and ``auth``
    (``ledger.load_bookie_security``). None: the file that the variable DLOG_BOOKIE_SECURITY names, if it is
    set and neither ``tls`` nor ``auth`` is given."""
    zookeeper_security: ZooKeeperSecurity | None = attrs.field(
        default=None, validator=optional(instance_of(ZooKeeperSecurity))
    )
    """Identity, access lists and TLS of the sessions with ZooKeeper. None: the file that the variable
    DLOG_ZK_SECURITY names, if it is set."""
    placement: PlacementConfig = attrs.field(factory=PlacementConfig)
    """How bookies are chosen: over racks or regions, by free disk (``bkEnsemblePlacement...``); class and
    policies are in ``ledger.placement.config``."""
    add_quorum_timeout_s: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """If an entry is not durable after this long, the writer ends the segment and starts the next one
    (``bkc.addEntryQuorumTimeoutSec``)."""
    delay_ensemble_change: bool = False
    """Replace a failing bookie only when records cannot become durable without it
    (``bkc.delayEnsembleChange``)."""
    statistics: bool = attrs.field(default=False, validator=instance_of(bool))
    """Measure how long operations take: ``Namespace.statistics`` then has histograms. Its counters are there
    without it."""
    tracing: bool = attrs.field(default=False, validator=instance_of(bool))
    """Make spans of OpenTelemetry, by the tracer provider of the program; it needs ``opentelemetry-api``,
    which the extra ``tracing`` installs."""
    writer: WriterConfig = attrs.field(factory=WriterConfig)
    reader: ReaderConfig = attrs.field(factory=ReaderConfig)
    heal: HealConfig = attrs.field(factory=HealConfig)
    """How segments that began on fewer bookies are healed."""

    def __attrs_post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise ConfigError(
                f"ensemble_size={self.ensemble_size}, write_quorum={self.write_quorum}, "
                f"ack_quorum={self.ack_quorum}: each may be at most as large as the one before"
            )

        parse_listen_at(self.owner_address)
        given = self.tls is not None or self.auth is not None
        if self.bookie_security is not None and given:
            raise ConfigError("bookie_security: it has TLS and authentication; leave out tls and auth")
        if self.tls is None and getattr(self.auth, "needs_tls", False):
            raise ConfigError("auth: this plug-in sends its secret over TLS only; set tls too")

    def ledger_spec(self, custom: Mapping[str, bytes]) -> LedgerSpec:
        """A new ledger for a log of the namespace, with these custom metadata."""
        assert self.digest_type is not None  # ``for_scheme`` set it
        return LedgerSpec(
            ensemble_size=self.ensemble_size,
            write_quorum=self.write_quorum,
            ack_quorum=self.ack_quorum,
            digest_type=self.digest_type,
            password=self.password,
            custom=custom,
            may_be_smaller=self.writer.degraded_ensemble,
        )

    def for_scheme(self, scheme: str) -> NamespaceConfig:
        """These settings with all defaults of a kind of namespace, ``file`` or ``distributedlog``.

        Raises:
            ConfigError: A setting that Apache's readers cannot read, in a shared namespace. Or a setting of a
                network, for a directory.
        """
        if scheme == "file" and self.tls is not None:
            raise ConfigError("tls: a directory is not reached over a network; leave it out for file://")
        if scheme == "file" and self.auth is not None:
            raise ConfigError("auth: a directory is not reached over a network; leave it out for file://")
        if scheme == "file" and self.bookie_security is not None:
            raise ConfigError(
                "bookie_security: a directory is not reached over a network; leave it out for file://"
            )
        if scheme == "file" and self.zookeeper_security is not None:
            raise ConfigError("zookeeper_security: a directory has no ZooKeeper; leave it out for file://")
        if scheme == "file" and self.placement.policy is not PlacementPolicy.RANDOM:
            raise ConfigError("placement: a directory has one bookie; leave it out for file://")
        shared = scheme != "file" if self.shared_with_java is None else self.shared_with_java
        digest_type = self.digest_type or (DigestType.CRC32 if shared else DigestType.CRC32C)
        if shared and not self.compression.shared_with_java:
            raise ConfigError(
                f"compression={self.compression.name}: Apache's readers would take it for uncompressed data; "
                "use LZ4, or say shared_with_java=False if none will ever read this namespace"
            )
        if shared and digest_type is not DigestType.CRC32:
            raise ConfigError(
                f"digest_type={digest_type.name}: Apache DistributedLog opens ledgers with CRC32 only; "
                "use that, or say shared_with_java=False if none will ever read this namespace"
            )
        if shared:
            self.writer.check_shared()
        sizes = (1, 1, 1) if scheme == "file" else (self.ensemble_size, self.write_quorum, self.ack_quorum)
        return attrs.evolve(
            self,
            digest_type=digest_type,
            shared_with_java=shared,
            password=b"" if shared and self.password is None else self.password,
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
        )


def given_settings(config: WriterConfig | ReaderConfig | NamespaceConfig) -> frozenset[str]:
    """The names of the settings that the caller gave, also of those with their default value.

    After ``attrs.evolve`` all count as given. A pickled or copied configuration keeps them.
    """
    fields = attrs.fields(type(config))
    differing = {field.name for field in fields if getattr(config, field.name) != default_of(field)}
    return config._arguments | differing
