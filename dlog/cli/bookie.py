"""``dlog bookie``: one storage server, until a signal stops it; its directories, while it is stopped.

Inside: options, what is printed. Not inside: everything else (``bookie.__main__``, ``bookie.index_rebuild``).
Exit codes of the server are those of Apache's bookie, since operators' scripts know them; the other commands
have those of all of `dlog`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

import click

from bookie.errors import DirectoryInUseError, NoLedgerError
from bookie.index_view import IndexView
from bookie.journal_format import RECORD_IDS
from bookie.ledgers import LedgerData
from dlog.cli.bookie_gc import gc
from dlog.cli.inspect import entry_log, index_file, journal, print_places
from dlog.cli.output import print_facts, print_json, progress_bar, tell
from dlog.cli.target import json_option

CONFIG = click.Path(dir_okay=False, path_type=Path)


@click.group("bookie", invoke_without_command=True)
@click.option(
    "--config", "config_path", metavar="FILE", type=CONFIG, help="Apache's bk_server.conf, as it is."
)
@click.pass_context
def bookie(context: click.Context, config_path: Path | None) -> int | None:
    """Run one storage server (bookie) of a cluster, or look after its directories.

    FILE is a bk_server.conf as Apache BookKeeper has it. Keys that only a JVM can obey are named in one log
    line; unknown keys are refused with the nearest known name. SIGTERM stops the bookie in an orderly way.

    Exit codes without a command: 0 stopped by a signal; 1 configuration; 2 port in use, or unexpected;
    3 metadata store out of reach; 4 not announced; 5 disks: foreign cookie, locked or unwritable directory,
    failed write.
    """
    if context.invoked_subcommand is not None:
        if config_path is not None:
            raise click.UsageError("--config belongs behind the command")
        return None
    if config_path is None:
        raise click.UsageError("Missing option '--config'.")
    from bookie.__main__ import run_program

    return run_program(config_path)


config_option = click.option(
    "--config", "config_path", metavar="FILE", type=CONFIG, required=True, help="The bookie's bk_server.conf."
)


@bookie.command("rebuild-index")
@config_option
@click.option("--accept-damage", is_flag=True, help="Go on where an entry log is damaged; see above.")
@json_option("what was found in each ledger directory")
def rebuild_index(config_path: Path, accept_damage: bool, as_json: bool) -> int:
    """Derive the bookie's index from its entry logs.

    For an index that is lost or damaged, and to exchange it for the other kind (ledgerStorageClass). The
    bookie must not run; what its journal has is added at its next start. The new index is built beside the
    old one and takes its place at the end.

    Where the old index cannot tell them any more, keys and fences are lost: every ledger found is fenced, so
    that no two writers can succeed, and takes the first key offered.

    If an entry log is damaged nothing is changed, unless --accept-damage is given: then what can be read is
    indexed, and the ledgers of that directory are put in limbo, where nothing that is not found is denied.

    Exit codes: 5 the bookie runs; 7 an entry log is damaged.
    """
    from bookie.config import load_config
    from bookie.disk import RealDisk
    from bookie.index_rebuild import entry_log_bytes, rebuild_indexes

    logging.basicConfig(format="dlog: %(message)s", level=logging.WARNING)
    config, disk = load_config(config_path).storage, RealDisk()
    started = time.perf_counter()
    with progress_bar(
        "reading entry logs", entry_log_bytes(disk, config), unit="bytes", quiet=as_json
    ) as progress:
        rebuilt = rebuild_indexes(disk, config, accept_damage=accept_damage, progress=progress)
    seconds = time.perf_counter() - started
    documents = []
    for one in rebuilt:
        derived = one.derived
        documents.append(
            {
                "directory": str(one.directory),
                "was_interrupted": one.was_finished,
                "entry_logs": derived.logs,
                "bytes": derived.bytes,
                "entries": derived.entries,
                "ledgers": derived.ledgers,
                "fenced_ledgers": derived.fenced,
                "skipped_entries_of_deleted_ledgers": derived.skipped_entries,
                "torn_ends": derived.torn,
                "damage": derived.damage,
            }
        )
        for line in (*derived.torn, *derived.damage):
            tell(f"{one.directory}: {line}")
    if as_json:
        print_json({"seconds": round(seconds, 3), "directories": documents})
    else:
        for document in documents:
            print_facts((name.replace("_", " "), _text(value)) for name, value in document.items())
        done = sum(one.derived.bytes for one in rebuilt)
        tell(f"{done:,} bytes of entry logs in {seconds:.1f} s, {done / seconds / 1e6:,.0f} MB/s")
    return 0


@bookie.command("check")
@config_option
@json_option("what was found in each ledger directory")
def check(config_path: Path, as_json: bool) -> int:
    """Look at every entry that the index names: whether it is where the index says.

    For Apache's directories with index files (.idx), too. The bookie must not run; nothing is changed.
    Digests are looked at by the scrubber of a running bookie and by clients, not here.

    Exit codes: 5 the bookie runs; 7 something is wrong.
    """
    from bookie.config import load_config
    from bookie.disk_read_only import ReadOnlyDisk
    from bookie.index_rebuild import directories_of, locked
    from bookie.index_view import open_view
    from bookie.local_check import check_directory
    from dlog.cli.exit_codes import ExitCode

    config, disk = load_config(config_path).storage, ReadOnlyDisk()
    documents: list[dict[str, object]] = []
    wrong = 0
    with locked(disk, config), progress_bar("entries", None, quiet=as_json) as progress:
        for directory, index_directory in directories_of(config):
            index = open_view(disk, index_directory)
            try:
                checked = check_directory(
                    disk,
                    directory,
                    index,
                    tell=lambda what, directory=directory: tell(f"{directory}: {what}"),  # type: ignore[misc]
                    progress=progress,
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
@click.option("--entries", "with_entries", is_flag=True, help="Also where each entry lies, a line each.")
@json_option("one object for the ledger, then one for each entry, a line each,")
def show_ledger(config_path: Path, ledger_id: int, with_entries: bool, as_json: bool) -> None:
    """Print what the bookie's index knows of a ledger: its state, and which entries lie where.

    While the bookie runs the answer is approximate: what is not flushed yet is in its journal only.
    """
    from bookie.config import load_config
    from bookie.disk_read_only import ReadOnlyDisk
    from bookie.index_rebuild import directories_of, locked
    from bookie.index_view import open_view

    config, disk = load_config(config_path).storage, ReadOnlyDisk()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(disk, config))
        except DirectoryInUseError:
            tell("the bookie runs: what it has not flushed yet is missing here, and the rest may be changing")
        for directory, index_directory in directories_of(config):
            index = open_view(disk, index_directory)
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
    for run in index.runs(ledger_id):
        first = run.entry_ids[0] if first is None else first
        last = run.entry_ids[-1]
        count += len(run.entry_ids)
    document: dict[str, object] = {
        "ledger": ledger_id,
        "directory": str(directory),
        "has_master_key": bool(data.master_key),  # the key itself opens the ledger to whoever reads it here
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
        for run in index.runs(ledger_id):
            print_places(run, as_json=as_json)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return "; ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


# By the names that Apache's shell has for them.
bookie.add_command(journal, "read-journal")
bookie.add_command(entry_log, "read-log")
bookie.add_command(index_file, "read-index")
bookie.add_command(gc)

command = bookie
