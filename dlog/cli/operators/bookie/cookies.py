"""`dlog bookie cookie create|get|update|delete|generate`: the cookies of bookies in the metadata store.

Inside: options and output. Not inside: the text of a cookie (``bookie.identity.cookie``), the check at a
start (``bookie.identity.cookie_check``).
Always: text that does not parse as a cookie of the named bookie is not stored; an update and a deletion are
conditional on the version that was read; the cookie of a registered bookie, or of one that a ledger names, is
not deleted.

Source: BookKeeper, org.apache.bookkeeper.tools.cli.commands.cookie; docs/metadata.md 6.
"""

from __future__ import annotations

from pathlib import Path

import click

from bookie.errors import CookieError
from bookie.identity.cookie import Cookie, decode_cookie, encode_cookie
from dlog.cli.operators.autorecovery import OpenedCluster, opened_cluster
from dlog.cli.operators.service import Service, service_options
from dlog.cli.terminal.escapes import escaped
from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.groups import CommandGroup
from dlog.cli.terminal.options import json_option
from dlog.cli.terminal.output import print_json, print_note
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run
from ledger.catalog.paths import INSTANCE_ID, check_bookie_id, cookie_path
from ledger.decommission import remove_cookie
from ledger.decommission.removal import check_not_registered
from ledger.errors import BookieInUseError, LedgerError
from ledger.metadata_store.errors import BadVersionError, NoNodeError
from ledger.runtime.audit import audited_async

COOKIE_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def _checked_id(_context: click.Context, _option: click.Parameter, value: str) -> str:
    try:
        check_bookie_id(value)
    except LedgerError as exc:
        raise click.UsageError(str(exc)) from exc
    return value


_bookie_argument = click.argument("bookie", metavar="BOOKIE", callback=_checked_id)


@click.group("cookie", cls=CommandGroup)
def cookie() -> None:
    """Show, create, change and delete the cookies of bookies in the metadata store.

    A cookie ties the directories of a bookie to its id and to its cluster. A bookie writes its own cookie at
    its first start, so these commands are for repairs.
    """


@cookie.command("get")
@_bookie_argument
@service_options
@json_option("the cookie")
def get(bookie: str, service: Service, as_json: bool) -> int:
    """Print the cookie of BOOKIE. Exit code 3 if it has none."""

    async def go() -> bytes | None:
        async with opened_cluster(service) as opened:
            try:
                return (await opened.deployment.store.get(_path(opened, bookie))).value
            except NoNodeError:
                return None

    found = run(go)
    if found is None:
        return _missing(bookie)
    if as_json:
        print_json(_document(decode_cookie(found)))
    else:
        print("\n".join(map(escaped, found.decode("utf-8", "replace").rstrip("\n").split("\n"))))
    return ExitCode.OK


@cookie.command("create")
@_bookie_argument
@click.option("--cookie-file", required=True, type=COOKIE_FILE, help="The text of the cookie.")
@service_options
def create(bookie: str, cookie_file: Path, service: Service) -> None:
    """Store the cookie of BOOKIE from a file, such as VERSION of one of its directories.

    Exit code 4 if it has a cookie.
    """
    data = _read(bookie, cookie_file)

    async def go() -> None:
        async with opened_cluster(service) as opened:
            path = _path(opened, bookie)
            async with audited_async("create cookie", path):
                await opened.deployment.store.create(path, data, parents=True)

    run(go)
    print_note(f"created the cookie of {bookie}")


@cookie.command("update")
@_bookie_argument
@click.option("--cookie-file", required=True, type=COOKIE_FILE, help="The text of the cookie.")
@_yes_option
@service_options
def update(bookie: str, cookie_file: Path, yes: bool, service: Service) -> int:
    """Replace the cookie of the stopped BOOKIE by the text of a file. Exit code 3 if it has none.

    The bookie starts only if its directories have the same cookie. Refused while it is registered (exit
    code 5).
    """
    data = _read(bookie, cookie_file)
    if not yes:
        confirm(f"Replace the cookie of {bookie}?")

    async def go() -> bool:
        async with opened_cluster(service) as opened:
            store, path = opened.deployment.store, _path(opened, bookie)
            await check_not_registered(store, opened.deployment.ledgers_root, bookie)
            try:
                version = (await store.get(path)).stat.version
                async with audited_async("update cookie", path):
                    await store.put(path, data, expected=version)
            except NoNodeError:
                return False
            except BadVersionError as exc:
                raise BookieInUseError(
                    bookie, "another process changed its cookie meanwhile; try again"
                ) from exc
            return True

    if not run(go):
        return _missing(bookie)
    print_note(f"replaced the cookie of {bookie}")
    return ExitCode.OK


@cookie.command("delete")
@_bookie_argument
@_yes_option
@service_options
def delete(bookie: str, yes: bool, service: Service) -> int:
    """Delete the cookie of the stopped and empty BOOKIE. Exit code 3 if it has none.

    Refused while the bookie is registered or a ledger names it (exit code 5).
    """
    if not yes:
        confirm(f"Delete the cookie of {bookie}, so that it leaves the cluster?")

    async def go() -> bool:
        async with opened_cluster(service) as opened:
            deployment = opened.deployment
            async with audited_async("delete cookie", _path(opened, bookie)):
                return await remove_cookie(
                    deployment.client.context, deployment.store.current_session(), bookie
                )

    if not run(go):
        return _missing(bookie)
    print_note(f"deleted the cookie of {bookie}")
    return ExitCode.OK


@cookie.command("generate")
@_bookie_argument
@click.option("--journal-dirs", required=True, metavar="DIRS", help="As journalDirectories: with commas.")
@click.option("--ledger-dirs", required=True, metavar="DIRS", help="As ledgerDirectories.")
@click.option("--index-dirs", metavar="DIRS", help="As indexDirectories. [default: none]")
@click.option("--instance-id", metavar="ID", help="The instance id. [default: that of the cluster]")
@click.option(
    "--output-file", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The new file."
)
@service_options
def generate(
    bookie: str,
    journal_dirs: str,
    ledger_dirs: str,
    index_dirs: str | None,
    instance_id: str | None,
    output_file: Path,
    service: Service,
) -> None:
    """Write the cookie of BOOKIE to a new file, for `create`, `update` or its VERSION files."""

    async def stored() -> str | None:
        async with opened_cluster(service) as opened:
            try:
                node = await opened.deployment.store.get(f"{opened.deployment.ledgers_root}/{INSTANCE_ID}")
            except NoNodeError:
                return None
            return node.value.decode()

    made = Cookie(
        bookie,
        tuple(journal_dirs.split(",")),
        tuple(ledger_dirs.split(",")),
        tuple(index_dirs.split(",")) if index_dirs else (),
        instance_id or run(stored),
    )
    try:
        with output_file.open("xb") as file:
            file.write(encode_cookie(made))
    except OSError as exc:
        raise click.UsageError(f"{output_file} cannot be written: {exc.strerror}") from exc
    print_note(f"wrote {output_file}")


def _read(bookie: str, file: Path) -> bytes:
    data = file.read_bytes()
    try:
        found = decode_cookie(data)
    except CookieError as exc:
        raise click.UsageError(f"{file}: {exc}") from exc
    if found.bookie_id != bookie:
        raise click.UsageError(f"{file} is the cookie of {found.bookie_id}, not of {bookie}")
    return data


def _path(opened: OpenedCluster, bookie: str) -> str:
    return cookie_path(opened.deployment.ledgers_root, bookie)


def _missing(bookie: str) -> int:
    print_note(f"dlog: bookie {bookie} has no cookie; `dlog bookies list` shows the bookies with one")
    return ExitCode.NOT_FOUND


def _document(found: Cookie) -> dict[str, object]:
    return {
        "bookie": found.bookie_id,
        "journal_directories": list(found.journal_directories),
        "ledger_directories": list(found.ledger_directories),
        "index_directories": list(found.index_directories),
        "instance_id": found.instance_id,
        "layout_version": found.layout_version,
    }
