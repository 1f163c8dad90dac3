"""Ledgers: write, read and recover them. The client side of Apache BookKeeper.

    async with ledger.open_client("zk+hierarchical://zk1:2181/ledgers") as client:  # or file:///var/lib/shop/ledgers
        async with await client.create(password=b"secret") as writer:
            await writer.append(b"first")  # returns when an ack quorum of bookies has synced it
        reader = await client.open(writer.ledger_id, password=b"secret")
        entries = await reader.read(0, reader.last_confirmed)
        await reader.close()

``ledger.blocking`` offers the same without ``async``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ledger.runtime.green_threads import check_import as _check_import

_check_import()

# The public names. Each is imported when it is first used: every module of this package runs this file first.
if TYPE_CHECKING:
    __all__: list[str]
    from ledger import blocking as blocking
    from ledger.auth.auth import AuthFactory as AuthFactory
    from ledger.auth.auth import ClientAuth as ClientAuth
    from ledger.auth.auth_plugins import client_auth as client_auth
    from ledger.auth.sasl import SaslAuth as SaslAuth
    from ledger.auth.token_auth import TokenAuth as TokenAuth
    from ledger.catalog.paths import Layout as Layout
    from ledger.catalog.store_errors import InvalidLedgersUriError as InvalidLedgersUriError
    from ledger.client import BookieSpace as BookieSpace
    from ledger.client import LedgerClient as LedgerClient
    from ledger.config import ClientConfig as ClientConfig
    from ledger.deploy.deployment import open_client as open_client
    from ledger.digest import DigestType as DigestType
    from ledger.digest import Entry as Entry
    from ledger.errors import AccessDeniedError as AccessDeniedError
    from ledger.errors import BookieError as BookieError
    from ledger.errors import BookieRefusal as BookieRefusal
    from ledger.errors import BookieTimeoutError as BookieTimeoutError
    from ledger.errors import BookieUnavailableError as BookieUnavailableError
    from ledger.errors import ClientClosedError as ClientClosedError
    from ledger.errors import ClientRefusedError as ClientRefusedError
    from ledger.errors import ClusterNotFoundError as ClusterNotFoundError
    from ledger.errors import CorruptEntryError as CorruptEntryError
    from ledger.errors import DirectoryUnusableError as DirectoryUnusableError
    from ledger.errors import DuplicateEntryIdError as DuplicateEntryIdError
    from ledger.errors import EntryBeyondLacError as EntryBeyondLacError
    from ledger.errors import EntryTooLargeError as EntryTooLargeError
    from ledger.errors import LedgerClosedError as LedgerClosedError
    from ledger.errors import LedgerError as LedgerError
    from ledger.errors import LedgerExistsError as LedgerExistsError
    from ledger.errors import LedgerFencedError as LedgerFencedError
    from ledger.errors import LedgerReadError as LedgerReadError
    from ledger.errors import LedgerRecoveryError as LedgerRecoveryError
    from ledger.errors import LedgerWriteError as LedgerWriteError
    from ledger.errors import MetadataFormatError as MetadataFormatError
    from ledger.errors import MetadataStoreError as MetadataStoreError
    from ledger.errors import MetadataUnavailableError as MetadataUnavailableError
    from ledger.errors import NoSuchEntryError as NoSuchEntryError
    from ledger.errors import NoSuchLedgerError as NoSuchLedgerError
    from ledger.errors import NotEnoughBookiesError as NotEnoughBookiesError
    from ledger.errors import PlacementError as PlacementError
    from ledger.errors import ReadOnlyError as ReadOnlyError
    from ledger.errors import SecuritySettingsError as SecuritySettingsError
    from ledger.errors import TracingError as TracingError
    from ledger.errors import WrongPasswordError as WrongPasswordError
    from ledger.ledger_spec import LedgerSpec as LedgerSpec
    from ledger.metadata import Ensemble as Ensemble
    from ledger.metadata import LedgerMetadata as LedgerMetadata
    from ledger.metadata import LedgerState as LedgerState
    from ledger.metadata_store.errors import InvalidStoreAddressError as InvalidStoreAddressError
    from ledger.placement.config import PlacementConfig as PlacementConfig
    from ledger.placement.config import PlacementPolicy as PlacementPolicy
    from ledger.read.handle import ReadHandle as ReadHandle
    from ledger.runtime.statistics.histogram import Histogram as Histogram
    from ledger.runtime.statistics.snapshot import Statistics as Statistics
    from ledger.transport.bookie_security import BookieSecurity as BookieSecurity
    from ledger.transport.bookie_security import load_bookie_security as load_bookie_security
    from ledger.transport.config import TransportConfig as TransportConfig
    from ledger.write.adv_handle import AdvWriteHandle as AdvWriteHandle
    from ledger.write.handle import WriteHandle as WriteHandle

# A library prints nothing unless its program configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

if not TYPE_CHECKING:  # else a type checker would take any name

    def __getattr__(name: str) -> object:
        from ledger.runtime.lazy_names import lazy_name

        return lazy_name(__name__, name)

    def __dir__() -> list[str]:
        return list(__getattr__("__all__"))
