"""``dlog bookie``: run one bookie until a signal stops it; check and repair its directories while it is down.

Inside: options and output; requests to a running bookie, with paths and bodies of Apache's bookie, so that
the commands work with both. Not inside: the bookie (``bookie.__main__``), the rebuild of an index
(``bookie.offline.index_rebuild``), the check (``bookie.damage.consistency_check``).
Always: the running bookie exits with the codes of Apache's bookie, because operators' scripts know them. The
other commands exit with the codes of `dlog`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import attrs
import click

from bookie.errors import DirectoryInUseError, NoLedgerError
from bookie.index.index_factory import STORAGE_CLASSES, IndexKind
from bookie.index.index_view import IndexView
from bookie.journal.format import RECORD_IDS
from bookie.ledger_record import LedgerData
from dlog.cli.operators.bookie.admin_server import BookieServer, server_options
from dlog.cli.operators.bookie.cookies import cookie
from dlog.cli.operators.bookie.drain import drain
from dlog.cli.operators.bookie.inspect import entry_log, index_file, journal, print_places
from dlog.cli.operators.bookie.removal import decommission, recover
from dlog.cli.operators.bookie.replacement import replace_disk
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.log_lines import print_warnings
from dlog.cli.terminal.options import gather, json_option
from dlog.cli.terminal.output import print_facts, print_json, print_note, progress_bar
from dlog.cli.terminal.questions import confirm
from ledger.runtime.audit import audited


@click.command("readonly")
@click.argument("wanted", metavar="on|off|status", type=click.Choice(["on", "off", "status"]))
@server_options
@json_option("the state")
def readonly(wanted: str, server: BookieServer, as_json: bool) -> None:
    """Make a running bookie read-only, or writable again; or show its state.

    A read-only bookie serves reads and gets no new ledgers. It stays so until `off`, or until it starts
    again. The bookie needs its HTTP server: httpServerEnabled=true in its configuration.

    Exit codes: 1 the bookie rejects the request; 6 the bookie does not reply.
    """
    body = None if wanted == "status" else {"readOnly": wanted == "on"}
    state = server.request("state/readonly", body)
    if as_json:
        print_json({"read_only": state["readOnly"]})
    else:
        print("read-only" if state["readOnly"] else "writable")


_POLL_INTERVAL_S = 0.5


@attrs.frozen
class _Round:
    """The round that is asked for, if any."""

    force: bool
    force_major: bool
    force_minor: bool
    wait: bool

    @property
    def is_wanted(self) -> bool:
        return self.force or self.force_major or self.force_minor


@click.command("gc")
@server_options
@click.option("--force", is_flag=True, help="Start a round now, with compaction that is not suspended.")
@click.option("--force-major", is_flag=True, help="Start a round now with major compaction.")
@click.option("--force-minor", is_flag=True, help="Start a round now with minor compaction.")
@click.option("--suspend", type=click.Choice(["minor", "major", "all"]), help="Suspend automatic compaction.")
@click.option("--resume", type=click.Choice(["minor", "major", "all"]), help="Undo --suspend.")
@click.option("--wait", is_flag=True, help="Wait for the end of the forced round.")
@json_option("the garbage collection of each ledger directory")
@gather(asked=_Round)
def gc(server: BookieServer, asked: _Round, suspend: str | None, resume: str | None, as_json: bool) -> int:
    """Show or control the garbage collection of a running bookie.

    The options force a round, and suspend or resume compaction. The bookie needs its HTTP server:
    httpServerEnabled=true in its configuration. A forced level is compacted even if it is suspended, and even
    on a full disk. The round continues if this command is stopped.

    Exit codes: 1 the bookie rejects the request; 6 the bookie does not reply.
    """
    from dlog.cli.terminal.output import print_facts, print_json

    if suspend is not None:
        server.request("gc/suspend_compaction", _levels(suspend, "suspendMinor", "suspendMajor"))
    if resume is not None:
        server.request("gc/resume_compaction", _levels(resume, "resumeMinor", "resumeMajor"))
    if asked.force_major or asked.force_minor:
        server.request("gc", {"forceMajor": asked.force_major, "forceMinor": asked.force_minor})
    elif asked.force:
        server.request("gc", {})
    if asked.wait and asked.is_wanted:
        _wait(server, quiet=as_json)
    details = server.request("gc_details")
    suspended = server.request("gc/suspend_compaction")
    if as_json:
        print_json({"suspended": suspended, "directories": details})
        return ExitCode.OK
    for one in details:
        print_facts((name, _shown(name, value)) for name, value in one.items())
    print_facts(suspended.items())
    return ExitCode.OK


def _levels(level: str, minor: str, major: str) -> dict[str, bool]:
    return {minor: level in ("minor", "all"), major: level in ("major", "all")}


def _wait(server: BookieServer, *, quiet: bool) -> None:
    from dlog.cli.terminal.screen import Line

    line = None if quiet else Line(sys.stdout)
    try:
        while server.request("gc")["is_in_force_gc"] == "true":
            if line is not None:
                done = sum(one.get("compactedBytes", 0) for one in server.request("gc_details"))
                line.draw(f"collecting; {done:,} bytes of entry logs compacted since the bookie started")
            time.sleep(_POLL_INTERVAL_S)
    finally:
        if line is not None:
            line.clear()


def _shown(name: str, value: object) -> str:
    if name.endswith("Time") and isinstance(value, int):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value / 1000)) if value else "never"
    if isinstance(value, dict):
        return "; ".join(map(str, value.values())) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


CONFIG = click.Path(dir_okay=False, path_type=Path)


@click.group("bookie", cls=CommandGroup, invoke_without_command=True)
@click.option(
    "--config", "config_path", metavar="FILE", type=CONFIG, help="A bk_server.conf of Apache BookKeeper."
)
@click.option("--strict", is_flag=True, help="An unknown key in FILE is an error, not a warning.")
@click.option("--with-auto-recovery", is_flag=True, help="Run auto-recovery in this process, too.")
@click.pass_context
def bookie(
    context: click.Context, config_path: Path | None, strict: bool, with_auto_recovery: bool
) -> int | None:
    """Run one bookie (storage server) of a cluster, or check and repair its directories.

    Without a command, the bookie runs with the configuration in FILE, a bk_server.conf of Apache BookKeeper.
    Log lines name the keys without effect and the unknown ones, with the nearest known key. An unknown key
    that may protect something is an error, and with --strict every unknown key. `dlog config check FILE`
    lists all keys of a file. SIGTERM shuts the bookie down in an orderly way.

    Exit codes without a command: 0 stopped by a signal; 1 invalid configuration; 2 port in use, or an
    unexpected error; 3 metadata store out of reach; 4 registration failed; 5 disk error: foreign cookie,
    locked or unwritable directory, failed write.
    """
    if context.invoked_subcommand is not None:
        if config_path is not None or strict or with_auto_recovery:
            raise click.UsageError(f"put --config behind the command {context.invoked_subcommand}")
        return None
    if config_path is None:
        raise click.UsageError("Missing option '--config'.")
    from bookie.__main__ import run_program
    from dlog.cli.operators.bookie.page_routes import open_page_routes

    return run_program(
        config_path,
        open_routes=open_page_routes,
        strict=strict,
        with_auto_recovery=with_auto_recovery,
    )


_DB_LEDGER_STORAGE = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"

config_option = click.option(
    "--config", "config_path", metavar="FILE", type=CONFIG, required=True, help="The bookie's bk_server.conf."
)


@bookie.command("rebuild-index")
@config_option
@click.option("--accept-damage", is_flag=True, help="Index what is readable in a damaged entry log.")
@json_option("the result for each ledger directory")
def rebuild_index(config_path: Path, accept_damage: bool, as_json: bool) -> int:
    """Rebuild the bookie's index from its entry logs.

    Use this for a lost or damaged index, or after a change of ledgerStorageClass. The bookie must be
    stopped; it replays its journal at the next start. The new index is built beside the old one and replaces
    it at the end.

    The entry logs hold no keys and no fences. If the old index is unreadable, every ledger found is fenced,
    so that no second writer can succeed, and accepts the first key that a client sends.

    If an entry log is damaged, nothing is changed and the command fails. With --accept-damage, the readable
    entries are indexed, and the ledgers of that directory are put in limbo: the bookie does not claim that an
    entry it lacks was never written.

    Exit codes: 5 the bookie runs; 7 an entry log is damaged.
    """
    return _rebuild(config_path, None, "rebuild index", accept_damage=accept_damage, as_json=as_json)


@bookie.command("format")
@config_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the directories")
def format_(config_path: Path, yes: bool, as_json: bool) -> None:
    """Delete all entries, the journal and the index of a stopped bookie.

    The cookie in the metadata store stays, so the bookie does not start on the empty directories:
    `dlog bookie replace-disk` copies its entries back from the other bookies; or `dlog bookie decommission`
    moves its ledgers and deletes the cookie, and then the bookie starts as a new one. If the command is
    interrupted, run it again.

    Exit code 5: the bookie runs; nothing was deleted.
    """
    from bookie.config.bookie_config import load_config
    from bookie.disk.real_disk import RealDisk
    from bookie.offline.directory_format import format_directories

    config = load_config(config_path).storage
    named = [*config.journal_directories, *config.ledger_directories]
    if not yes:
        question = f"Delete ALL entries of this bookie in {', '.join(map(str, dict.fromkeys(named)))}?"
        confirm(question)
    with audited("format bookie", str(config_path)):
        directories = format_directories(RealDisk(), config)
    if as_json:
        print_json({"directories": list(map(str, directories))})
    else:
        print_note(f"{len(directories)} directories are empty")


bookie.add_command(format_, "bookieformat")


@bookie.command("convert-index")
@config_option
@click.option(
    "--to",
    "target",
    type=click.Choice(["pages", "chunks", "databases"]),
    required=True,
    help="pages: Apache's SortedLedgerStorage; chunks: ours, faster with many ledgers;"
    " databases: Apache's DbLedgerStorage.",
)
@click.option("--accept-damage", is_flag=True, help="Index what is readable in a damaged entry log.")
@json_option("the result for each ledger directory")
def convert_index(config_path: Path, target: str, accept_damage: bool, as_json: bool) -> int:
    """Take over the directories of Apache's bookie, or change the kind of the index.

    The bookie must be stopped. Locations come from the entry logs; keys, fences and explicit LACs come from
    our index, from the index files of Apache's SortedLedgerStorage or InterleavedLedgerStorage, or from the
    RocksDB databases of Apache's DbLedgerStorage. Without any of them every ledger found is fenced.

    Databases, old or new, are compared with the entry logs entry by entry. If they do not agree, or if
    Apache's databases cannot be read, nothing is changed.

    The new index is built beside the old one and replaces it at the end. If the command is interrupted, run
    it again; no bookie starts in between. Afterwards set ledgerStorageClass to SortedLedgerStorage for pages,
    to DbLedgerStorage for chunks. After databases only Apache's bookie with DbLedgerStorage starts.

    Exit codes: 5 the bookie runs; 7 an entry log is damaged.
    """
    if target == "databases" and accept_damage:
        raise click.UsageError(
            "Apache's databases cannot be made from a damaged entry log: use --accept-damage with"
            " `dlog bookie rebuild-index`, let the bookie restore the entries from other replicas, and then"
            " convert"
        )
    kind = None if target == "databases" else IndexKind(target)
    code = _rebuild(
        config_path,
        kind,
        "convert index",
        to_databases=kind is None,
        fences_unreadable=False,
        accept_damage=accept_damage,
        as_json=as_json,
    )
    if kind is None:
        print_note(f"Apache's bookie needs ledgerStorageClass={_DB_LEDGER_STORAGE}; ours does not start")
    else:
        print_note(f"the bookie needs ledgerStorageClass={STORAGE_CLASSES[kind]}")
    return code


def _rebuild(
    config_path: Path,
    kind: IndexKind | None,
    action: str,
    *,
    to_databases: bool = False,
    fences_unreadable: bool = True,
    accept_damage: bool,
    as_json: bool,
) -> int:
    from bookie.config.bookie_config import load_config
    from bookie.disk.real_disk import RealDisk
    from bookie.offline.index_rebuild import entry_log_bytes, rebuild_indexes

    print_warnings()
    config, disk = load_config(config_path).storage, RealDisk()
    if kind is not None:
        config = attrs.evolve(config, index=attrs.evolve(config.index, kind=kind))
    started = time.perf_counter()
    with progress_bar(
        "reading entry logs", entry_log_bytes(disk, config), unit="bytes", quiet=as_json
    ) as progress:
        options = " --accept-damage" if accept_damage else ""
        with audited(action, f"{config_path}{options}"):
            rebuilt = rebuild_indexes(
                disk,
                config,
                to_databases=to_databases,
                fences_unreadable=fences_unreadable,
                accept_damage=accept_damage,
                progress=progress,
            )
    seconds = time.perf_counter() - started
    documents = []
    for one in rebuilt:
        stats = one.stats
        documents.append(
            {
                "directory": str(one.directory),
                "was_interrupted": one.was_finished,
                "entry_logs": stats.logs,
                "bytes": stats.bytes,
                "entries": stats.entries,
                "ledgers": stats.ledgers,
                "fenced_ledgers": stats.fenced,
                "skipped_entries_of_deleted_ledgers": stats.skipped_entries,
                "torn_ends": stats.torn,
                "damage": stats.damage,
            }
        )
        for line in (*stats.torn, *stats.damage):
            print_note(f"{one.directory}: {line}")
    if as_json:
        print_json({"seconds": round(seconds, 3), "directories": documents})
    else:
        for document in documents:
            print_facts((name.replace("_", " "), _text(value)) for name, value in document.items())
        done = sum(one.stats.bytes for one in rebuilt)
        print_note(f"{done:,} bytes of entry logs in {seconds:.1f} s, {done / seconds / 1e6:,.0f} MB/s")
    return 0


@bookie.command("check")
@config_option
@json_option("the result for each ledger directory")
def check(config_path: Path, as_json: bool) -> int:
    """Check that the index names the right place of every entry.

    The command also reads directories of Apache's bookies, with index files (.idx) or with the databases of
    DbLedgerStorage. The bookie must be stopped; nothing is changed. The command does not verify digests; the
    scrubber of a running bookie and clients do.

    Exit codes: 5 the bookie runs; 7 an entry is missing or misplaced.
    """
    from bookie.config.bookie_config import load_config
    from bookie.damage.consistency_check import check_directory
    from bookie.disk.read_only import ReadOnlyDisk
    from bookie.index.index_view import open_index_view
    from bookie.offline.index_rebuild import directories_of, locked
    from dlog.cli.terminal.exit_codes import ExitCode

    config, disk = load_config(config_path).storage, ReadOnlyDisk()
    documents: list[dict[str, object]] = []
    wrong = 0
    with locked(disk, config), progress_bar("entries", None, quiet=as_json) as progress:
        for directory, index_directory in directories_of(config):
            index = open_index_view(disk, index_directory)
            try:
                checked = check_directory(
                    disk,
                    directory,
                    index,
                    on_problem=lambda problem, directory=directory: print_note(f"{directory}: {problem}"),  # type: ignore[misc]
                    on_progress=progress,
                )
            finally:
                index.close()
            wrong += checked.problems
            documents.append(
                {
                    "directory": str(directory),
                    "ledgers": checked.ledgers,
                    "entries": checked.entries,
                    "problems": checked.problems,
                }
            )
    if as_json:
        print_json({"problems": wrong, "directories": documents})
    else:
        for document in documents:
            print_facts((name, _text(value)) for name, value in document.items())
    return ExitCode.DAMAGED if wrong else ExitCode.OK


@bookie.command("show-ledger")
@config_option
@click.argument("ledger_id", metavar="LEDGER", type=click.IntRange(min=0))
@click.option("--entries", "with_entries", is_flag=True, help="Also print the place of each entry.")
@json_option("one object for the ledger and one per entry, one a line,")
def show_ledger(config_path: Path, ledger_id: int, with_entries: bool, as_json: bool) -> None:
    """Print a ledger's state and the places of its entries.

    The result comes from the bookie's index. The master key is never printed. While the bookie runs, the
    result is incomplete: entries that are not flushed yet are only in the journal.
    """
    from bookie.config.bookie_config import load_config
    from bookie.disk.read_only import ReadOnlyDisk
    from bookie.index.index_view import open_index_view
    from bookie.offline.index_rebuild import directories_of, locked

    config, disk = load_config(config_path).storage, ReadOnlyDisk()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(disk, config))
        except DirectoryInUseError:
            print_note(
                "the bookie runs: entries that it has not flushed are missing here, and the index may change"
            )
        for directory, index_directory in directories_of(config):
            index = open_index_view(disk, index_directory)
            stack.callback(index.close)
            data = next((known for found, known in index.ledgers() if found == ledger_id), None)
            if data is not None:
                _print_ledger(directory, ledger_id, data, index, with_entries=with_entries, as_json=as_json)
                return
    raise NoLedgerError(ledger_id)


def _print_ledger(
    directory: Path,
    ledger_id: int,
    data: LedgerData,
    index: IndexView,
    *,
    with_entries: bool,
    as_json: bool,
) -> None:
    first = last = None
    count = 0
    for entry_range in index.ranges(ledger_id):
        first = entry_range.entry_ids[0] if first is None else first
        last = entry_range.entry_ids[-1]
        count += len(entry_range.entry_ids)
    document: dict[str, object] = {
        "ledger": ledger_id,
        "directory": str(directory),
        "has_master_key": bool(data.master_key),  # the key itself is secret: it opens the ledger
        "fenced": data.fenced,
        "limbo": data.limbo,
        "lac": data.lac if data.lac >= 0 else None,
        "explicit_lac": None if data.explicit_lac is None else RECORD_IDS.unpack_from(data.explicit_lac)[1],
        "entries": count,
        "first_entry": first,
        "last_entry": last,
    }
    if as_json:
        print_json(document)
    else:
        print_facts((name.replace("_", " "), _text(value)) for name, value in document.items())
    if with_entries:
        for entry_range in index.ranges(ledger_id):
            print_places(entry_range, as_json=as_json)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "; ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# The names of Apache's shell for these commands.
bookie.add_command(journal, "read-journal")
bookie.add_command(entry_log, "read-log")
bookie.add_command(index_file, "read-index")
bookie.add_command(gc)
bookie.add_command(cookie)
bookie.add_command(readonly)
bookie.add_command(drain)
bookie.add_command(recover)
bookie.add_command(decommission)
bookie.add_command(replace_disk)
bookie.add_command(decommission, "decommissionbookie")

command = bookie
