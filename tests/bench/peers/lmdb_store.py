"""LMDB with its default durability: each commit syncs. The reader polls the last transaction id."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.bench.peers.polling import READ_RECORDS, pause
from tests.bench.peers.seam import Address, Peer, Service, no_servers

_KEY = struct.Struct(">Q")
_MAP_BYTES = 1 << 36  # of addresses; the file grows with its content
PACKAGE = "lmdb: `pip install lmdb`"


class LmdbWriter:
    """Puts the records of one append in one transaction, with ascending keys."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._written = 0

    def append(self, payloads: Sequence[bytes]) -> None:
        """As ``PeerWriter.append``."""
        with self._environment.begin(write=True) as transaction:
            for number, payload in enumerate(payloads, self._written):
                transaction.put(_KEY.pack(number), payload, append=True)
        self._written += len(payloads)

    append_each = append


class LmdbReader:
    """Reads from its position on, in one transaction for each batch."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._met = 0
        self._transaction_id = -1

    def read(self) -> Sequence[bytes]:
        """As ``PeerReader.read``."""
        while True:
            # First the transaction's number, then the rows: a later commit is found by the next look.
            newest = self._environment.info()["last_txnid"]
            if newest == self._transaction_id:
                pause()
                continue
            found: list[bytes] = []
            with self._environment.begin() as transaction, transaction.cursor() as cursor:
                if cursor.set_range(_KEY.pack(self._met)):
                    found = list(itertools.islice(cursor.iternext(keys=False), READ_RECORDS))
            self._met += len(found)
            if len(found) < READ_RECORDS:
                self._transaction_id = newest
            if found:
                return found


@contextlib.asynccontextmanager
async def _serve(directory: Path, _replicas: int) -> AsyncIterator[Service]:
    yield Service({"directory": str(directory)}, 1, no_servers)


@contextlib.contextmanager
def _open(address: Address, *, readonly: bool) -> Iterator[Any]:
    # By name: the package is no dependency, and most machines do not have it.
    lmdb = importlib.import_module("lmdb")
    environment = lmdb.open(address["directory"], map_size=_MAP_BYTES, readonly=readonly)
    with contextlib.closing(environment):
        yield environment


@contextlib.contextmanager
def _open_writer(address: Address, _size: int) -> Iterator[LmdbWriter]:
    with _open(address, readonly=False) as environment:
        yield LmdbWriter(environment)


@contextlib.contextmanager
def _open_reader(address: Address, _size: int) -> Iterator[LmdbReader]:
    with _open(address, readonly=True) as environment:
        yield LmdbReader(environment)


def _find_missing() -> str | None:
    return None if importlib.util.find_spec("lmdb") else PACKAGE


PEER = Peer("lmdb", _find_missing, _serve, _open_writer, _open_reader)
