"""Settings of a namespace, its writers and its readers, all with defaults that are safe.

Always: a setting that could harm what Apache's programs share is refused by name (``for_scheme``), not
ignored.

Source: DistributedLog, DistributedLogConfiguration.java (names in the field docstrings), reference section
6.7.
"""

from __future__ import annotations

import ssl
from typing import Any, Literal

import attrs
from attrs.validators import ge, gt, in_, instance_of, optional

from dlog.batcher import BODY_BYTES_MAX
from dlog.compression import Compression
from dlog.errors import ConfigError
from ledger.digest import DigestType
from ledger.placement_config import PlacementConfig, PlacementPolicy

_POSITIVE_OR_NONE: Any = optional(gt(0))


@attrs.frozen(kw_only=True)
class WriterConfig:
    """How a writer batches, rolls, and how long it is patient."""

    entry_bytes_target: int = attrs.field(default=65_536, validator=gt(0))
    """Records that wait are cut into entries of about this size (``writerOutputBufferSize``)."""
    bytes_in_flight_max: int = attrs.field(default=16 * 1024 * 1024, validator=gt(0))
    """Bytes submitted and not yet durable before ``wait_room`` waits; ``submit`` refuses at four times as
    many."""
    visibility_delay_ms: float = attrs.field(default=5.0, validator=ge(0))
    """Idle for so long, the writer adds a control record, so that readers see the last records."""
    segment_bytes_max: int | None = attrs.field(default=256 * 1024 * 1024, validator=_POSITIVE_OR_NONE)
    """A segment with more bytes is rolled (``maxLogSegmentBytes``)."""
    segment_age_s_max: float | None = attrs.field(default=7200.0, validator=_POSITIVE_OR_NONE)
    """A segment in use for longer is rolled (``logSegmentRollingMinutes``)."""
    lock_timeout_s: float = attrs.field(default=30.0, validator=ge(0))
    """How long opening waits for another writer to let go (``lockTimeoutSeconds``); 0: not at all."""
    patience_s: float = attrs.field(default=60.0, validator=ge(0))
    """How long records wait while no segment can be written (bookies or metadata out of reach) until they
    fail."""
    retry_pause_s: float = attrs.field(default=0.2, validator=gt(0))
    """Pause before a failed step of a segment's life is tried again; doubled up to 16-fold."""
    close_timeout_s: float = attrs.field(default=15.0, validator=gt(0))
    """How long leaving ``async with`` may take; what is unfinished then is left to the next writer's
    recovery."""

    def __attrs_post_init__(self) -> None:
        if self.entry_bytes_target > BODY_BYTES_MAX:
            raise ConfigError(
                f"entry_bytes_target={self.entry_bytes_target}: an entry takes at most {BODY_BYTES_MAX} bytes"
            )


@attrs.frozen(kw_only=True)
class ReaderConfig:
    """How far a reader reads ahead and when it complains."""

    read_bytes_max: int = attrs.field(default=512 * 1024, validator=gt(0))
    """What one read from the ledger asks for."""
    read_ahead_bytes_max: int = attrs.field(default=4 * 1024 * 1024, validator=gt(0))
    """Entries read and not yet taken, before reading pauses."""
    long_poll_s: float = attrs.field(default=10.0, validator=gt(0))
    """How long one wait for new entries lasts (``readLACLongPollTimeout``); they are seen as soon as they
    come."""
    relist_interval_s: float = attrs.field(default=10.0, validator=gt(0))
    """Idle for so long, the reader lists the segments again, in case a watch was lost
    (``readerIdleWarnThresholdMillis``)."""
    patience_s: float = attrs.field(default=60.0, validator=ge(0))
    """Reads that keep failing for so long end the reader with ``LogReaderStalledError``."""
    retry_pause_s: float = attrs.field(default=0.1, validator=gt(0))
    """Pause before a failed read is tried again; doubled up to 16-fold."""
    check_positions: bool = True
    """Whether a gap in the positions of records is an error (``positionGapDetectionEnabled``)."""


@attrs.frozen(kw_only=True)
class NamespaceConfig:
    """How a namespace stores its logs."""

    ensemble_size: int = attrs.field(default=3, validator=gt(0))
    """Bookies that hold a segment (``bkcEnsembleSize``); a directory has one."""
    write_quorum: int = attrs.field(default=3, validator=gt(0))
    """Copies of each entry (``bkcWriteQuorumSize``)."""
    ack_quorum: int = attrs.field(default=2, validator=gt(0))
    """Copies that are safe on disk before a record counts as durable (``bkcAckQuorumSize``)."""
    digest_type: DigestType | None = attrs.field(default=None, validator=optional(instance_of(DigestType)))
    """The checksum of entries. None: CRC32 where Apache's programs read, as they know no other; else
    CRC32C."""
    password: bytes = attrs.field(default=b"", validator=instance_of(bytes), repr=False)
    """Of the ledgers (``digestPw``)."""
    compression: Compression = attrs.field(default=Compression.NONE, validator=instance_of(Compression))
    """Of entries (``compressionType``)."""
    shared_with_java: bool | None = attrs.field(default=None, validator=in_((None, True, False)))
    """Whether Apache's programs must be able to read it. None: yes for ``distributedlog://``, no for
    ``file://``."""
    create: bool = False
    """Bind a ``distributedlog://`` namespace that is not bound yet, to ``ledgers_root`` on the same
    ZooKeeper."""
    ledgers_root: str = "/ledgers"
    """For ``create``: where the cluster keeps its ledgers."""
    client_id: str | None = None
    """What the lock tells others about the owner; default: host, process id."""
    session_timeout_ms: int = attrs.field(default=10_000, validator=gt(0))
    connect_timeout_s: float = attrs.field(default=10.0, validator=gt(0))
    wire_version: Literal[2, 3] = attrs.field(default=2, validator=in_((2, 3)))
    """The bookies' protocol on the data path."""
    tls: ssl.SSLContext | None = attrs.field(default=None, validator=optional(instance_of(ssl.SSLContext)))
    """Talk TLS to bookies, or not at all (``tlsProviderFactoryClass``); ``ledger.tls.client_context`` makes
    one."""
    placement: PlacementConfig = attrs.field(factory=PlacementConfig)
    """How bookies are chosen: over racks or regions, by free disk (``bkEnsemblePlacement...``); class and
    policies are in ``ledger.placement_config``."""
    add_quorum_timeout_s: float | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """A segment whose entry is not durable after so long is left, and the next one begun
    (``bkc.addEntryQuorumTimeoutSec``)."""
    delay_ensemble_change: bool = False
    """Replace a failing bookie only when records cannot become durable without it
    (``bkc.delayEnsembleChange``)."""
    writer: WriterConfig = attrs.field(factory=WriterConfig)
    reader: ReaderConfig = attrs.field(factory=ReaderConfig)

    def __attrs_post_init__(self) -> None:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise ConfigError(
                f"ensemble_size={self.ensemble_size}, write_quorum={self.write_quorum}, "
                f"ack_quorum={self.ack_quorum}: each may be at most as large as the one before"
            )

    def for_scheme(self, scheme: str) -> NamespaceConfig:
        """These settings with everything decided for a kind of namespace, ``file`` or ``distributedlog``.

        Raises:
            ConfigError: Something that Apache's readers could not read, in a namespace they share; TLS where
                there is no network.
        """
        if scheme == "file" and self.tls is not None:
            raise ConfigError("tls: a directory is not reached over a network; leave it out for file://")
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
        sizes = (1, 1, 1) if scheme == "file" else (self.ensemble_size, self.write_quorum, self.ack_quorum)
        return attrs.evolve(
            self,
            digest_type=digest_type,
            shared_with_java=shared,
            ensemble_size=sizes[0],
            write_quorum=sizes[1],
            ack_quorum=sizes[2],
        )
