"""`dlog promote`: move logs of a directory to a cluster, resume, undo or show that, delete what is left."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import click

import dlog
from dlog.cli.terminal.options import gather, json_option
from dlog.cli.terminal.output import counted, print_json, print_note, print_table, progress_bar
from dlog.cli.terminal.questions import confirm
from dlog.cli.terminal.signals import run

COLUMNS = ["log", "phase", "target", "segments", "copied", "takes records"]


@attrs.frozen
class _Target:
    """Permissions for the namespace that gets the logs."""

    create: bool
    keep_target_policy: bool
    not_shared_with_java: bool


@click.command("promote")
@click.argument("source", metavar="SOURCE")
@click.option(
    "--to", metavar="URI", help="The namespace that gets the logs, such as distributedlog://zk1/shop."
)
@click.option(
    "--log", "logs", multiple=True, metavar="LOG", help="A log; several may be given. Default: all."
)
@click.option("--resume", "action", flag_value="resume", help="Go on with interrupted promotions.")
@click.option("--undo", "action", flag_value="undo", help="Give promotions up, before their hand-over only.")
@click.option("--status", "action", flag_value="status", help="Show promotions, and change nothing.")
@click.option("--purge", "action", flag_value="purge", help="Delete the segments of promoted logs in SOURCE.")
@click.option("--create", is_flag=True, help="Create the namespace at the target if it does not exist.")
@click.option("--keep-target-policy", is_flag=True, help="Also if its policy differs from that of SOURCE.")
@click.option("--not-shared-with-java", is_flag=True, help="Apache's programs never read the target.")
@click.option("--yes", is_flag=True, help="Purge without asking.")
@json_option("the promotions")
@gather(target=_Target)
def command(
    source: str,
    to: str | None,
    logs: tuple[str, ...],
    action: str | None,
    target: _Target,
    yes: bool,
    as_json: bool,
) -> None:
    """Move logs from the directory SOURCE (file:///DIRECTORY) to another namespace.

    Writers and readers may work during the promotion. They continue at the target, if their processes
    reach it; records keep their positions. Every segment is compared with its copy before the target
    takes records. --resume continues with an interrupted promotion. --undo works only before the
    hand-over is complete. The segments in SOURCE stay until --purge.
    """
    if to is None and action is None:
        raise click.UsageError("give the target with --to, or one of --resume, --undo, --status and --purge")
    if to is not None and action not in (None, "undo"):
        raise click.UsageError(f"--{action} takes the target from SOURCE; leave out --to")
    if action == "purge" and not yes:
        confirm(f"Delete the segments of promoted logs in {source}?")
    given: dict[str, Any] = {"create": True} if target.create else {}
    if target.not_shared_with_java:
        given["shared_with_java"] = False
    config = dlog.NamespaceConfig(**given)  # other places may give the rest
    chosen = list(logs) or None
    match action:
        case "undo":
            found = run(partial(_undo, source, to, chosen, config))
        case "status":
            found = run(partial(_status, source, chosen, config))
        case "purge":
            found = run(partial(_purge, source, chosen, config))
        case _:
            keep = target.keep_target_policy
            found = run(partial(_promote, source, to, chosen, config, keep, quiet=as_json))
    if as_json:
        print_json([attrs.asdict(each) for each in found])
    elif found:
        print_table(COLUMNS, [_row(each) for each in found])
    else:
        print_note("no log is promoted or being promoted")


def _row(status: dlog.PromotionStatus) -> list[str]:
    side = "target" if status.takes_records == status.target else "source"
    if status.takes_records is None:
        side = "neither"  # --resume finishes the hand-over
    return [
        status.log,
        status.phase + (", purged" if status.is_purged else ""),
        status.target,
        str(status.segments),
        str(status.segments_copied),
        side,
    ]


async def _promote(
    source: str,
    to: str | None,
    logs: list[str] | None,
    config: dlog.NamespaceConfig,
    keep_target_policy: bool,
    *,
    quiet: bool,
) -> list[dlog.PromotionStatus]:
    with progress_bar("copying", None, unit="bytes", quiet=quiet) as advance:
        last = ("", "")

        def report(progress: dlog.PromotionProgress) -> None:
            nonlocal last
            if (progress.log, progress.step) != last and progress.step:
                last = (progress.log, progress.step)
                print_note(f"{progress.log}: {progress.step}")
            advance(progress.bytes_copied)

        async with dlog.open_namespace(source, config=config) as namespace:
            return await namespace.promotion.promote_all(
                to, logs, keep_target_policy=keep_target_policy, on_progress=report
            )


async def _undo(
    source: str, to: str | None, logs: list[str] | None, config: dlog.NamespaceConfig
) -> list[dlog.PromotionStatus]:
    async with dlog.open_namespace(source, config=config) as namespace:
        for log in logs or await namespace.list_logs():
            if to is None and logs is None and await namespace.promotion.status(log) is None:
                continue
            await namespace.promotion.undo(log, to)
            print_note(f"{log}: the promotion is undone; it takes records in {source}")
    return []


async def _status(
    source: str, logs: list[str] | None, config: dlog.NamespaceConfig
) -> list[dlog.PromotionStatus]:
    async with dlog.open_namespace(source, config=config) as namespace:
        names = logs or await namespace.list_logs()
        found = [await namespace.promotion.status(log) for log in names]
    return [each for each in found if each is not None]


async def _purge(
    source: str, logs: list[str] | None, config: dlog.NamespaceConfig
) -> list[dlog.PromotionStatus]:
    found = []
    async with dlog.open_namespace(source, config=config) as namespace:
        for log in logs or await namespace.list_logs():
            status = await namespace.promotion.status(log)
            if logs is None and (status is None or status.phase != "done"):
                continue
            print_note(
                f"{log}: deleted {counted(await namespace.promotion.purge(log), 'segment')} in {source}"
            )
            if (status := await namespace.promotion.status(log)) is not None:
                found.append(status)
    return found
