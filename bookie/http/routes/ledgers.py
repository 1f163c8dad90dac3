"""Ledgers of the cluster: list them, show their metadata and entries, delete one.

Always: a reply holds a bounded number of ledgers or entries. A longer list is refused with the way to page,
never cut.

Source: ListLedgerService.java, GetLedgerMetaService.java, ReadLedgerEntryService.java,
DeleteLedgerService.java.
"""

from __future__ import annotations

import base64
import contextlib
from typing import Any

from bookie.cluster.access import ClusterAccess
from bookie.http.admin import Admin
from bookie.http.messages import (
    AdminReply,
    AdminRequest,
    BadRequestError,
    Method,
    json_reply,
    long_json_reply,
)
from bookie.http.router import Route, get
from ledger.catalog.catalog import LedgerCatalog
from ledger.catalog.metadata_codec import encode_metadata
from ledger.errors import LedgerMetadataError, MetadataFormatError, NoSuchLedgerError
from ledger.metadata import LedgerMetadata

PAGE_LEDGERS = 100
PAGE_ENTRIES = 1000
LEDGERS_MAX = 100_000  # ids in one reply
METADATA_MAX = 5_000  # ledgers with metadata in one reply
ENTRIES_BYTES_MAX = 16 << 20  # of the entries in one reply


async def list_ledgers(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET ledger/list``: id to null, to the stored metadata, or to an object; pages of 100 ledgers."""
    catalog = admin.need_cluster().catalog
    has_metadata = request.is_true("print_metadata")
    page = request.number("page", 0)
    most = PAGE_LEDGERS if page > 0 else METADATA_MAX if has_metadata else LEDGERS_MAX
    ids = await _ids(catalog, max(0, page - 1) * PAGE_LEDGERS, most, is_page=page > 0)
    if not has_metadata:
        return await long_json_reply(dict.fromkeys(ids))
    is_decoded = request.is_true("decode_meta")
    shown: dict[str, Any] = {}
    for ledger_id in ids:
        try:
            metadata = (await catalog.get(ledger_id)).metadata
        except NoSuchLedgerError:
            continue  # deleted just now
        except MetadataFormatError as exc:
            shown[str(ledger_id)] = f"cannot be decoded: {exc}"
            continue
        shown[str(ledger_id)] = (
            metadata_object(ledger_id, metadata)
            if is_decoded
            else encode_metadata(metadata).decode("utf-8", "replace")
        )
    return await long_json_reply(shown)


async def _ids(catalog: LedgerCatalog, skipped: int, most: int, *, is_page: bool) -> list[int]:
    """The ids after the first ``skipped``. ``BadRequestError`` if there are too many for one reply."""
    ids: list[int] = []
    async with contextlib.aclosing(catalog.ledger_ranges()) as ranges:
        async for found in ranges:
            some = found.ledger_ids
            if skipped >= len(some):
                skipped -= len(some)
                continue
            ids += some[skipped : skipped + most + 1 - len(ids)]
            skipped = 0
            if len(ids) > most:
                if is_page:
                    return ids[:most]
                raise BadRequestError(f"there are more than {most} ledgers; ask for pages with ?page=1")
    return ids


async def show_metadata(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET ledger/metadata``: the id to the decoded metadata."""
    ledger_id = _ledger_id(admin, request)
    metadata = (await admin.need_cluster().catalog.get_newest(ledger_id)).metadata
    return json_reply({str(ledger_id): metadata_object(ledger_id, metadata)})


def metadata_object(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """The object that Apache's mapper makes of ledger metadata, with its keys in its order."""
    return {
        "ledgerId": ledger_id,
        "metadataFormatVersion": metadata.format_version,
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum,
        "ackQuorumSize": metadata.ack_quorum,
        "state": metadata.state.name,
        "length": metadata.length_bytes,
        "lastEntryId": metadata.last_entry_id,
        "ctime": -1 if metadata.ctime_ms is None else metadata.ctime_ms,
        "digestType": metadata.digest_type.name,
        "password": base64.b64encode(metadata.password or b"").decode(),
        "customMetadata": {name: base64.b64encode(value).decode() for name, value in metadata.custom.items()},
        "closed": metadata.is_closed,
        "allEnsembles": {
            str(ensemble.first_entry_id): [{"id": bookie} for bookie in ensemble.bookies]
            for ensemble in metadata.ensembles
        },
        "ctoken": metadata.creator_token,
    }


async def read_entries(admin: Admin, request: AdminRequest) -> AdminReply:
    """``GET ledger/read``: entry id to its payload as ASCII; the ledger is neither fenced nor closed."""
    ledger_id = _ledger_id(admin, request)
    first, last = request.number("start_entry_id", 0), request.number("end_entry_id", -1)
    page = request.number("page", 0)
    if first < 0:
        raise BadRequestError("start_entry_id: expected 0 or more")
    shown: dict[str, str] = {}
    if page > 0:
        shown["Entries for page: "] = str(page)
        first += (page - 1) * PAGE_ENTRIES
    cluster: ClusterAccess = admin.need_cluster()
    async with (
        admin.clients,
        cluster.open_client() as client,
        await client.open(ledger_id, password=None, recover=False) as reader,
    ):
        last = reader.last_confirmed if last < 0 else min(last, reader.last_confirmed)
        if page > 0:
            last = min(last, first + PAGE_ENTRIES - 1)
        size_bytes = 0
        while first <= last:
            for payload in await reader.read_payloads(first, last):
                size_bytes += len(payload)
                shown[str(first)] = payload.decode("ascii", "replace")
                first += 1
            if size_bytes > ENTRIES_BYTES_MAX and first <= last:
                raise BadRequestError(
                    f"the entries up to {first - 1} have {size_bytes} bytes already; ask for fewer with"
                    " &start_entry_id= and &end_entry_id="
                )
    return await long_json_reply(shown)


async def delete(admin: Admin, request: AdminRequest) -> AdminReply:
    """``DELETE ledger/delete``: no error if there is no such ledger, as Apache's."""
    ledger_id = _ledger_id(admin, request)
    await admin.need_cluster().catalog.delete(ledger_id)
    return json_reply(f"Deleted ledger: {ledger_id}")


def _ledger_id(admin: Admin, request: AdminRequest) -> int:
    """The ledger of the query. Raises ``BadRequestError`` if the cluster's layout can have no such ledger."""
    ledger_id = request.number("ledger_id")
    if ledger_id < 0:
        raise BadRequestError("ledger_id: expected 0 or more")
    try:
        admin.need_cluster().catalog.path(ledger_id)
    except LedgerMetadataError as exc:
        raise BadRequestError(str(exc)) from exc
    return ledger_id


ROUTES = (
    get("/api/v1/ledger/list", list_ledgers),
    get("/api/v1/ledger/metadata", show_metadata),
    get("/api/v1/ledger/read", read_entries),
    Route("/api/v1/ledger/delete", {Method.DELETE: delete}),
)
