"""The whole configuration of a bookie: one frozen class for each part.

Inside: the whole, and the parts that belong to no other module. Not inside: the classes of the other parts,
which stand beside the parts; the keys of a file (``table``), reading them (``bookie_config``).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from bookie.auth.tls import TlsConfig
from bookie.cluster.autorecovery import AutoRecoveryConfig
from bookie.cluster.startup_check import StartupCheckConfig
from bookie.config.admin_config import AdminConfig
from bookie.disk.fullness import FullnessConfig
from bookie.gc.collector import GcConfig
from bookie.healing.integrity import IntegrityConfig
from bookie.identity.address import AddressConfig
from bookie.requests.new_ledgers import NewLedgersConfig
from bookie.requests.permissions import PermissionsConfig
from bookie.server.config import ServerConfig
from bookie.storage.config import StorageConfig
from ledger.auth.sasl import SaslAuth
from ledger.catalog.paths import Layout


@attrs.frozen(kw_only=True)
class MetadataConfig:
    """The metadata store of the cluster."""

    hosts: str  # ZooKeeper's connect string
    ledgers_root: str = "/ledgers"
    layout: Layout | None = None  # None: the layout of the cluster
    session_timeout_ms: int = 10_000


@attrs.frozen(kw_only=True)
class DirectoryConfig:
    """The directories as written in the file; the cookie has the same text."""

    journal: tuple[str, ...]
    ledger: tuple[str, ...]
    index: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class BookieConfig:
    """The whole configuration of one bookie."""

    metadata: MetadataConfig
    directories: DirectoryConfig
    storage: StorageConfig
    startup_check: StartupCheckConfig = attrs.field(factory=StartupCheckConfig)
    integrity: IntegrityConfig = attrs.field(factory=IntegrityConfig)
    address: AddressConfig = attrs.field(factory=AddressConfig)
    server: ServerConfig = attrs.field(factory=ServerConfig)
    tls: TlsConfig | None = None
    secrets_refresh_s: float = 0  # certificates and secrets are read again so often; 0: on SIGHUP only
    permissions: PermissionsConfig | None = None  # None: authenticated peers may do everything
    client_auth: SaslAuth | None = None  # for reading from other bookies
    fullness: FullnessConfig = attrs.field(factory=FullnessConfig)
    read_only: bool = False
    persist_status: bool = False  # keep over restarts whether it was read-only
    sync_adds: bool = True
    network_location: str | None = None  # announced for placement by racks; Apache has no such key
    admin: AdminConfig | None = None  # HTTP for operators
    auto_recovery: AutoRecoveryConfig | None = None  # in this process; None: only elsewhere
    gc: GcConfig = attrs.field(factory=GcConfig)
    new_ledgers: NewLedgersConfig = attrs.field(factory=NewLedgersConfig)
    shown: Mapping[str, str] = attrs.field(factory=dict, repr=False, eq=False)  # the file, without secrets
    warnings: tuple[str, ...] = ()  # to be logged at the start, such as keys without effect
