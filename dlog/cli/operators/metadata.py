"""`dlog metadata backup|restore|diff|release`: the metadata of a whole cluster in a file.

Inside: options, files, questions and output. Not inside: the nodes (``ledger.catalog.cluster_backup``), the
format (``ledger.catalog.backup_file``).
Always: the file appears under its name when it is complete and synced, and only its owner may read it,
because it has the passwords of ledgers; no password is printed.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import click

from dlog.cli.operators.erase import open_store
from dlog.cli.operators.service import VARIABLE
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import VARIABLE as URI_VARIABLE
from dlog.cli.terminal.options import default_of_option, json_option
from dlog.cli.terminal.output import counted, print_json, print_name, print_note
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from dlog.ledgers import ledgers_uri
from ledger.catalog.backup_file import ClusterBackup, decode_backup, encode_backup
from ledger.catalog.cluster_backup import read_backup, release_restored, restore_backup
from ledger.metadata_store.service_uri import parse_metadata_service_uri
from ledger.runtime.audit import audited_async
from ledger.runtime.clock import wall_ms
from ledger.runtime.private_files import sync_directory

PROGRESS_NODES = 10_000
_service = click.option(
    "--service",
    "service_uri",
    envvar=VARIABLE,
    default=default_of_option,
    show_default=f"${VARIABLE}, else ${URI_VARIABLE}, else that of --config",
    callback=lambda context, _option, uri: (
        uri if context.resilient_parsing else run(lambda: ledgers_uri(uri))
    ),
    metavar="URI",
    help="The cluster: zk://HOST:PORT/ledgers, or the URI of a namespace.",
)
_existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("metadata", cls=CommandGroup)
def command() -> None:
    """Back up and restore the metadata of a whole cluster."""


@command.command("backup")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@_service
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="PATH",
    help="Also the namespace of logs at this path of ZooKeeper, such as /dlog/prod. Repeatable.",
)
@json_option("the number of nodes and the checksum of FILE")
def backup(file: Path, service_uri: str, namespaces: tuple[str, ...], as_json: bool) -> None:
    """Write all metadata of a cluster to the new FILE; the cluster may be in use.

    FILE has ledgers, cookies, the instance id, the layout, the settings of auto-recovery, and each
    --namespace. Exit code 2 if FILE exists, 3 if there is no cluster or namespace.
    """
    if file.exists():
        raise click.UsageError(f"{file} exists; a backup is written to a new file")
    root = parse_metadata_service_uri(service_uri).ledgers_root

    async def go() -> ClusterBackup:
        async with open_store(service_uri) as store:
            return await read_backup(store, root, namespaces, now_ms=wall_ms(), on_progress=_progress("read"))

    found = run(go)
    data = encode_backup(found)
    _write_new(file, data)
    if as_json:
        print_json({"nodes": len(found.nodes), "sha256": hashlib.sha256(data).hexdigest()})
    else:
        print_note(f"stored {counted(len(found.nodes), 'node')} of {', '.join(found.tops)} in {file}")


@command.command("restore")
@click.argument("file", metavar="FILE", type=_existing_file)
@_service
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the number of nodes and the new series of ledger ids")
def restore(file: Path, service_uri: str, yes: bool, as_json: bool) -> None:
    """Write the metadata in FILE to a metadata store that lost them.

    All bookies must be stopped (exit code 5), and the ledgers root and the namespaces must be empty (4). An
    incomplete FILE is refused (7). If the command was interrupted, run it again with the same FILE.

    What was acknowledged after the backup may be missing from the restored logs. Its entries stay on the
    bookies: ours delete no ledger until `dlog metadata release`.
    """
    root = parse_metadata_service_uri(service_uri).ledgers_root
    data = file.read_bytes()
    found = decode_backup(data)
    if found.ledgers_root != root:
        raise click.UsageError(
            f"{file} is of the ledgers root {found.ledgers_root}, and --service names {root}"
        )
    if not yes:
        confirm(f"Write {counted(len(found.nodes), 'node')} to {service_uri}?")

    async def go() -> int:
        async with open_store(service_uri) as store, audited_async("restore metadata", service_uri):
            return await restore_backup(
                store,
                found,
                hashlib.sha256(data).hexdigest(),
                now_ms=wall_ms(),
                on_progress=_progress("written"),
            )

    series = run(go)
    if as_json:
        print_json({"nodes": len(found.nodes), "id_series": series})
    else:
        print_note(
            f"restored {counted(len(found.nodes), 'node')}. New ledgers get ids from {series << 32} on. Run"
            " `dlog metadata accept-disks` on each bookie before it starts. Bookies delete no ledger until"
            " `dlog metadata release`"
        )


@command.command("diff")
@click.argument("first", metavar="A", type=_existing_file)
@click.argument("second", metavar="B", type=_existing_file)
@json_option("the paths that differ")
def diff(first: Path, second: Path, as_json: bool) -> int:
    """Compare two backups: print the paths that only A (-) or only B (+) has, and the changed ones (~).

    Exit code 1 if they differ. The values are not printed, because they have passwords.
    """
    old, new = (
        {node.path: node.value for node in decode_backup(one.read_bytes()).nodes} for one in (first, second)
    )
    removed = sorted(old.keys() - new.keys())
    added = sorted(new.keys() - old.keys())
    changed = sorted(path for path in old.keys() & new.keys() if old[path] != new[path])
    if as_json:
        print_json({"removed": removed, "added": added, "changed": changed})
    else:
        for sign, paths in (("-", removed), ("+", added), ("~", changed)):
            for path in paths:
                print_name(f"{sign} {path}")
    return ExitCode.FAILED if removed or added or changed else ExitCode.OK


@command.command("accept-disks")
@click.option(
    "--config",
    "config_path",
    required=True,
    type=_existing_file,
    metavar="FILE",
    help="The bookie's configuration.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the id of the bookie")
def accept_disks(config_path: Path, yes: bool, as_json: bool) -> None:
    """After a restore, vouch for the disks of a stopped bookie, before its first start.

    The disks must be those that it had when it last ran, and no older copy. A bookie that starts without
    this command denies no entry. If all bookies do so, ledgers that were open cannot be recovered.

    Exit codes: 5 the bookie runs; 3 the cluster was not restored; 1 the disks are of different times.
    """
    from bookie.config.bookie_config import load_config
    from bookie.disk.real_disk import RealDisk
    from bookie.identity.address import resolve_identity
    from bookie.identity.cookie import Cookie
    from bookie.identity.cookie_check import read_instance_id
    from bookie.identity.restored_disks import accept_restored_disks
    from bookie.offline.index_rebuild import locked

    config = load_config(config_path)
    identity = resolve_identity(config.address)
    root = config.metadata.ledgers_root
    if not yes:
        confirm(
            f"Are these the disks that bookie {identity.bookie_id} had when it last ran, and no older copy?"
        )

    async def go() -> None:
        hosts = config.metadata.hosts.replace(",", ";")
        async with (
            open_store(f"zk://{hosts}{root}") as store,
            audited_async("accept disks", f"{root} {identity.bookie_id}"),
        ):
            directories = config.directories
            cookie = Cookie(
                identity.bookie_id,
                directories.journal,
                directories.ledger,
                directories.index,
                await read_instance_id(store, root),
            )
            await accept_restored_disks(store, root, disk, cookie, identity.possible_ids)

    disk = RealDisk()
    with locked(disk, config.storage):
        run(go)
    if as_json:
        print_json({"bookie": identity.bookie_id})
    else:
        print_note(f"the disks of bookie {identity.bookie_id} are accepted; start it")


@command.command("release")
@_service
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option("the ledgers root")
def release(service_uri: str, yes: bool, as_json: bool) -> None:
    """Let the bookies of a restored cluster delete the ledgers that its metadata do not have.

    This deletes the entries of all ledgers created after the backup. Exit code 3 if the cluster was not
    restored, 4 if the restore is not complete.
    """
    root = parse_metadata_service_uri(service_uri).ledgers_root
    if not yes:
        confirm(f"Let the bookies of {root} delete all ledgers created after the backup?")

    async def go() -> None:
        async with open_store(service_uri) as store, audited_async("release restored cluster", root):
            await release_restored(store, root)

    run(go)
    if as_json:
        print_json({"ledgers_root": root})
    else:
        print_note(f"the bookies of {root} collect garbage again")


def _progress(done: str) -> Callable[[int], None]:
    noted = 0

    def show(nodes: int) -> None:
        nonlocal noted
        if nodes - noted >= PROGRESS_NODES:
            noted = nodes
            print_note(f"{counted(nodes, 'node')} {done}")

    return show


def _write_new(file: Path, data: bytes) -> None:
    """Create the file with all its bytes, or not at all."""
    unfinished = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.link(unfinished, file)  # unlike a rename it never replaces a file
    finally:
        unfinished.unlink()
    sync_directory(file.parent)
