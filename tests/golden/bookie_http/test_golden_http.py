"""The requests that were sent to Apache's bookie, sent to ours over a socket: status and JSON keys agree."""

# covers: bookie/http/routes/config.py
# covers: bookie/http/routes/disks.py

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from bookie.http.routes.table import ROUTES
from ledger.client import open_ledger_client
from ledger.digest import DigestType
from ledger.metadata_store.memory import MemoryTree, open_memory_store
from ledger.replication.marks import UnderReplicatedLedgers
from ledger.transport.dial import dial_tcp
from ledger.wire.messages import AddReply
from tests.unit.bookie.http.test_admin import TOKEN, send_request
from tests.unit.bookie.test_main import add_one, config_for, running

HERE = Path(__file__).parent
LISTENS = re.compile(r"listens at (http://\S+)")

# Apache's status, then ours. docs/http.md has the reasons.
DIFFERENT = {
    ("PUT", "/heartbeat", None): 405,
    ("PUT", "/api/v1/config/server_config", '{"foo":"bar"}'): 400,
    ("PUT", "/api/v1/config/server_config", None): 400,
    ("PUT", "/api/v1/bookie/state/readonly", "{}"): 400,
    ("PUT", "/api/v1/bookie/state/readonly", None): 400,
    ("GET", "/api/v1/ledger/metadata", None): 400,
    ("GET", "/api/v1/ledger/metadata?ledger_id=99", None): 404,
    ("GET", "/api/v1/ledger/metadata?ledger_id=x", None): 400,
    ("GET", "/api/v1/ledger/read", None): 400,
    ("GET", "/api/v1/ledger/read?ledger_id=99", None): 404,
    ("DELETE", "/api/v1/ledger/delete", None): 400,
    ("PUT", "/api/v1/autorecovery/status?enabled=xx", None): 400,
    ("PUT", "/api/v1/autorecovery/bookie", None): 400,
    ("PUT", "/api/v1/autorecovery/bookie", '{"bookie_src":[]}'): 400,
    ("PUT", "/api/v1/autorecovery/trigger_audit", None): 200,
    ("GET", "/api/v1/autorecovery/lost_bookie_recovery_delay", None): 200,  # the trigger has written it
    ("PUT", "/api/v1/autorecovery/lost_bookie_recovery_delay", None): 400,
    ("PUT", "/api/v1/autorecovery/lost_bookie_recovery_delay", '{"delay_seconds":-1}'): 400,
    ("PUT", "/api/v1/autorecovery/lost_bookie_recovery_delay", '{"delay_seconds":"a"}'): 400,
    ("PUT", "/api/v1/autorecovery/decommission", None): 400,
}
OTHER_REPLY = {"/api/v1/ledger/list?page=9"}  # Apache's counts pages only with metadata


@attrs.frozen
class Recorded:
    method: str
    path: str
    status: int
    body: str | None = None
    json: Any = None
    text: str | None = None

    @property
    def our_status(self) -> int:
        """The status that ours must have."""
        methods = {
            method.value for route in ROUTES if route.path == self.bare_path for method in route.handlers
        }
        if methods and self.method not in methods:
            return 405
        return DIFFERENT.get((self.method, self.path, self.body), self.status)

    @property
    def bare_path(self) -> str:
        return self.path.partition("?")[0]


def recorded(name: str) -> Iterator[Recorded]:
    for line in (HERE / name).read_text("utf-8").splitlines():
        yield Recorded(**json.loads(line))


VARYING = re.compile(r"127\.0\.0\.1:\d+|(?<=Journal Id - ).*")


def shape(value: Any) -> Any:
    """Keys and types; the ids of bookies and of journals are left out of keys."""
    if isinstance(value, dict):
        return {VARYING.sub("", key): shape(one) for key, one in value.items()}
    return [shape(one) for one in value] if isinstance(value, list) else type(value).__name__


def contains(ours: Any, apaches: Any) -> bool:
    """True if ours has all that Apache's has; an object may have more keys."""
    if isinstance(apaches, dict) and isinstance(ours, dict):
        return all(key in ours and contains(ours[key], one) for key, one in apaches.items())
    if isinstance(apaches, list) and isinstance(ours, list):
        return len(ours) == len(apaches) and all(map(contains, ours, apaches))
    return bool(ours == apaches)


async def replay(url: str, name: str) -> None:
    """Send all requests of a file, and check all replies."""
    wrong = []
    for one in recorded(name):
        if one.bare_path.endswith("decommission"):
            while b'"running": true' in (await send_request(url, "GET", "/api/v1/autorecovery/bookie"))[1]:
                pass
        body = b"" if one.body is None else one.body.encode()
        status, reply = await send_request(url, one.method, one.path, body)
        if status != one.our_status:
            wrong.append(f"{one.method} {one.path} {one.body}: {status}, not {one.our_status}: {reply!r}")
        elif status == one.status == 200 and one.json is not None:
            if one.path in OTHER_REPLY:
                continue
            if "server_config" in one.path:
                assert all(isinstance(value, str) for value in json.loads(reply).values())
            elif not contains(shape(json.loads(reply)), shape(one.json)):
                wrong.append(f"{one.method} {one.path}: {json.loads(reply)} is not like {one.json}")
        elif status == one.status == 200 and one.text is not None and reply.decode() != one.text:
            wrong.append(f"{one.method} {one.path}: {reply!r}, not {one.text!r}")
    assert wrong == []


@pytest.mark.slow
async def test_every_request_has_the_status_and_the_keys_of_apaches_bookie(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token_path = tmp_path / "token"
    token_path.write_bytes(TOKEN)
    token_path.chmod(0o600)
    more = f"httpServerEnabled=true\nhttpServerPort=0\nhttpServerTokenPath={token_path}\n"
    caplog.set_level(logging.INFO, "bookie.serving")
    tree = MemoryTree()
    with trio.fail_after(60):
        async with running(config_for(tmp_path, more), tree):
            found = LISTENS.search(caplog.text)
            assert found is not None
            url = found[1]
            await replay(url, "empty.jsonl")
            async with open_memory_store(tree) as store, open_ledger_client(store, dial_tcp) as client:
                while not client.membership.writable:  # the last requests made the bookie writable again
                    await client.membership.wait_change()
                for ledger_id in (3, 4):
                    writer = await client.create(
                        ensemble_size=1,
                        write_quorum=1,
                        ack_quorum=1,
                        digest_type=DigestType.CRC32,
                        password=b"pw",
                        custom={"app": b"x"},
                        ledger_id=ledger_id,
                    )
                    for number in range(5):
                        await writer.append(b"entry-%d" % number)
                    if ledger_id == 3:
                        await writer.close()
                marks = UnderReplicatedLedgers(store, "/ledgers")
                await marks.mark(4, ["127.0.0.1:9"])
                await marks.mark(3, ["127.0.0.1:9", "127.0.0.1:8"])
                await replay(url, "ledgers.jsonl")
                status, reply = await send_request(url, "GET", "/api/v1/ledger/metadata?ledger_id=3")
                ours = json.loads(reply)["3"]
                apaches = next(
                    one.json["3"]
                    for one in recorded("ledgers.jsonl")
                    if one.path.endswith("metadata?ledger_id=3")
                )
                differing = ("ctime", "allEnsembles")
                assert {key: ours[key] for key in ours if key not in differing} == {
                    key: apaches[key] for key in apaches if key not in differing
                }
                assert list(ours) == list(apaches)
                status, reply = await send_request(url, "DELETE", "/api/v1/ledger/delete?ledger_id=3")
                assert (status, json.loads(reply)) == (200, "Deleted ledger: 3")
                assert (await send_request(url, "GET", "/api/v1/ledger/metadata?ledger_id=3"))[0] == 404


# Our own, beside Apache's.
OUR_METRICS = {
    "bookie_add_duration_seconds",
    "bookie_connections",
    "bookie_contained_failures_total",
    "bookie_disk_free_bytes",
    "bookie_disk_total_bytes",
    "bookie_gc_QUARANTINED_ENTRY_LOG_TOTAL",
    "bookie_healing_attempts",
    "bookie_healing_entries",
    "bookie_healing_index_pages",
    "bookie_journal_dir_free_bytes",
    "bookie_journal_dir_total_bytes",
    "bookie_journal_sync_duration_seconds",
    "bookie_ledger_dir_entry_log_bytes",
    "bookie_ledger_dir_free_bytes",
    "bookie_ledger_dir_has_space",
    "bookie_ledger_dir_total_bytes",
    "bookie_limbo_copied_bytes_total",
    "bookie_limbo_copied_entries_total",
    "bookie_limbo_ledgers",
    "bookie_limbo_lost_entries",
    "bookie_limbo_unknown_replies",
    "bookie_long_polls",
    "bookie_read_duration_seconds",
    "bookie_flush",  # these seven: of Apache's DbLedgerStorage, which was not recorded
    "bookie_ledgers_count",
    "bookie_read_cache_hits",
    "bookie_read_cache_misses",
    "bookie_read_cache_size",
    "bookie_throttled_write_requests",
    "bookie_write_cache_size",
    "bookie_scrub_bytes",
    "bookie_scrub_damaged_entries",
    "bookie_scrub_entries",
    "bookie_scrub_rounds",
    "bookie_scrub_unreadable_index_ledgers",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
}
GAUGE_HERE = {"bookie_journal_JOURNAL_QUEUE_SIZE"}  # it goes down too, although Apache calls it a counter


async def test_metrics_have_apaches_names_and_kinds_and_count_what_was_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    apaches = dict(line.split() for line in (HERE / "metrics.txt").read_text().splitlines())
    caplog.set_level(logging.INFO, "bookie.serving")
    more = "httpServerEnabled=true\nhttpServerPort=0\n"
    with trio.fail_after(60):
        async with running(config_for(tmp_path, more), MemoryTree()) as bookie:
            found = LISTENS.search(caplog.text)
            assert found is not None
            assert isinstance(await add_one(bookie.port), AddReply)
            text = (await send_request(found[1], "GET", "/metrics"))[1].decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    usage = f"bookie_ledger_dir_{re.sub('[^A-Za-z0-9_]', '_', str(tmp_path))}_ledgers_usage"
    assert kinds.pop(usage) == apaches["bookie_ledger_dir__data_bk1_ledgers_usage"]
    assert kinds.keys() - OUR_METRICS <= apaches.keys()
    differing = {name for name in kinds.keys() & apaches.keys() if kinds[name] != apaches[name]}
    assert differing == GAUGE_HERE
    assert 'bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"} 1\n' in text
    assert re.search(
        r'^bookie_journal_JOURNAL_ADD_ENTRY_count\{journalIndex="0",success="true"\} [1-9]',
        text,
        re.MULTILINE,
    ), text
    assert re.search(
        r'^bookie_journal_JOURNAL_SYNC_count\{journalIndex="0",success="true"\} [1-9]', text, re.MULTILINE
    )
    assert re.search(r'^bookie_journal_JOURNAL_WRITE_BYTES\{journalIndex="0"\} [1-9]', text, re.MULTILINE)
    assert "bookie_ledgers_count 1\n" in text


def test_there_is_a_route_for_every_path_that_was_recorded() -> None:
    paths = {one.bare_path for name in ("empty.jsonl", "ledgers.jsonl") for one in recorded(name)}
    assert paths - {route.path for route in ROUTES} == {"/nothing"}
