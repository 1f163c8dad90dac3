"""The limits of a bookie's connections, read from ``bk_server.conf``.

Inside: reading the keys, the default number of connections. Not inside: the meaning of the limits
(``bookie.server.config``).

Source: ServerConfiguration.java; docs/protocol.md 10.3.
"""

from __future__ import annotations

from bookie.config.security_settings import read_authentication, read_tls_required
from bookie.config.settings import Settings
from bookie.disk.descriptor_limit import connections_below_limit
from bookie.index.index_factory import IndexKind
from bookie.limits import RECORD_BYTES_MAX
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig

_MIB = 1 << 20


def read_server(settings: Settings, storage: StorageConfig) -> ServerConfig:
    """The limits of connections.

    Raises:
        BookieConfigError: A value is invalid.
    """
    frame_bytes = settings.integer(
        "nettyMaxFrameSizeBytes", 5_242_880, least=1024, most=RECORD_BYTES_MAX, unit="bytes"
    )
    batch_bytes = settings.integer("maxBatchReadSize", 5_242_880, least=1, unit="bytes")
    reply_queue = settings.integer("serverWriteBufferHighWaterMark", 0, least=0, unit="bytes")
    total_mib = settings.integer("serverMaxMemorySizeMb", 0, least=1, most=1 << 20, unit="MiB")
    wait_ms = settings.integer(
        "waitTimeoutOnResponseBackpressureMs", -1, least=-1, most=2**31 - 1, unit="milliseconds"
    )
    closes = settings.boolean("closeChannelOnResponseTimeout", False)
    defaults = ServerConfig()
    return ServerConfig(
        total_bytes_max=total_mib * _MIB or defaults.total_bytes_max,
        # Unless it may close the connection, Apache drops replies. Here a reply is sent or its connection
        # ends: replies wait for a slow peer, and its requests wait meanwhile.
        response_timeout_s=max(wait_ms, 1) / 1000 if closes and wait_ms >= 0 else None,
        adds_in_progress_max=settings.integer("maxAddsInProgressLimit", 0),
        reads_in_progress_max=settings.integer("maxReadsInProgressLimit", 0),
        frame_bytes_max=frame_bytes,
        # Netty's mark is a hint that may be exceeded. Here it is a limit, so a smaller one would slow the
        # peer.
        reply_queue_bytes_max=max(reply_queue, defaults.reply_queue_bytes_max),
        batch_bytes_max=min(batch_bytes, frame_bytes),
        tcp_keepalive=settings.boolean("serverSockKeepalive", True),
        tls_required=read_tls_required(settings),
        auth=read_authentication(settings),
        pending_reads_max=settings.integer("maxPendingReadRequestsPerThread", defaults.pending_reads_max),
        pending_adds_max=settings.integer("maxPendingAddRequestsPerThread", defaults.pending_adds_max),
        long_polls_max=settings.integer("maxLongPollsPerConnection", defaults.long_polls_max, least=1),
        all_long_polls_max=settings.integer("maxLongPolls", defaults.all_long_polls_max, least=1),
        connections_max=settings.integer("maxConnections", 0) or _connections_max(storage),
        first_frame_timeout_s=_timeout_s(settings, "firstFrameTimeoutMs", defaults.first_frame_timeout_s),
        frame_timeout_s=_timeout_s(settings, "frameTimeoutMs", defaults.frame_timeout_s),
    )


def _timeout_s(settings: Settings, key: str, default_s: float) -> float:
    return settings.integer(key, int(default_s * 1000), least=1, most=2**31 - 1, unit="milliseconds") / 1000


def _connections_max(storage: StorageConfig) -> int:
    """The connections that leave storage its descriptors."""
    logs, directories = storage.per_ledger_logs, len(storage.ledger_directories)
    return connections_below_limit(
        len(storage.journal_directories),
        directories,
        (0 if logs is None else logs.open_logs_max)
        + (storage.index.pages.open_files_max * directories if storage.index.kind is IndexKind.PAGES else 0),
    )
