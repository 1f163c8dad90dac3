"""`dlog cluster start|stop|status --hosts FILE`: the programs of a cluster on several hosts.

Inside: the two options, output, exit codes. Not inside: what is done on the hosts (``dlog.cluster.hosts``).
Always: a token is printed only as part of a page's address, on stdout.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click
from click.core import ParameterSource

from dlog.cli.terminal.exit_codes import ExitCode
from dlog.cli.terminal.output import print_json, print_note, print_table
from dlog.cli.terminal.signals import run

if TYPE_CHECKING:
    from dlog.cluster.hosts import HostedCluster, Report

Command = TypeVar("Command", bound=Callable[..., Any])


def hosts_options(command: Command) -> Command:
    """Add `--hosts` and `--only`; the command gets ``hosts`` (a path or None) and ``only`` (names)."""
    only = click.option(
        "--only",
        multiple=True,
        metavar="NAME",
        help="This process, or with --hosts this host; may be repeated. [default: all]",
    )
    hosts = click.option(
        "--hosts",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Work on the hosts of a hosts file (docs/running.md) instead of this machine.",
    )
    return hosts(only(command))


def refuse_options(hosts: Path | None, *of_this_machine: str) -> None:
    """Refuse options that have no meaning with the ones given. Raises ``click.UsageError``."""
    if hosts is None:
        return
    context = click.get_current_context()
    for name in of_this_machine:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = name.replace("_", "-")
            raise click.UsageError(
                f"--{option} is for a cluster on this machine; the hosts file says it for hosts"
            )


def start(hosts: Path, only: tuple[str, ...], *, timeout_s: float, as_json: bool) -> int:
    """Start what does not run; print the programs, the page's address and the URI."""
    cluster = _cluster(hosts, only)
    report = run(partial(cluster.start, timeout_s=timeout_s))
    if as_json:
        _print_json(cluster, report)
    else:
        _print_programs(report)
        for host, page in report.pages if not report.reached else ():
            print_note(f"\npage on {host}: {page}")
    if report.reached:
        _print_failures(report)
        started = any(one.state == "started" for one in report.programs)
        print_note(
            f"the step that failed: {report.reached}. "
            + ("What has started goes on. " if started else "Nothing was started. ")
            + f"Remove the cause and give the same command again, which starts only what does not run;"
            f" --only NAME leaves out a host. `dlog cluster stop --hosts {hosts}` stops all; the data stay"
        )
    elif not as_json:
        print_note(f"\nexport DLOG_URI='{cluster.file.uri}'")
    return _exit_code(report)


def stop(hosts: Path, only: tuple[str, ...], *, grace_s: float, as_json: bool) -> int:
    """Stop the programs; the data stay."""
    cluster = _cluster(hosts, only)
    report = run(partial(cluster.stop, grace_s=grace_s))
    if as_json:
        _print_json(cluster, report)
    else:
        for one in report.programs:
            if one.state == "killed":
                print_note(
                    f"{one.host}: {one.program} did not end within {grace_s:g} s and was killed; a bookie"
                    " recovers from its journal at the next start"
                )
    if report.failures:
        _print_failures(report)
        print_note("give the command again when the cause is gone; programs of these hosts may still run")
    return _exit_code(report)


def status(hosts: Path, only: tuple[str, ...], *, as_json: bool) -> int:
    """Show the programs. Exit code 1 if one is not well, 6 if a host is out of reach."""
    cluster = _cluster(hosts, only)
    report = run(cluster.status)
    if as_json:
        _print_json(cluster, report)
    else:
        _print_programs(report)
    _print_failures(report)
    if not report.failures and not all(one.is_well for one in report.programs):
        return ExitCode.FAILED
    return _exit_code(report)


def _cluster(hosts: Path, only: tuple[str, ...]) -> HostedCluster:
    from dlog.cluster.hosts import HostedCluster, HostsFileError, load_hosts_file

    try:
        return HostedCluster(load_hosts_file(hosts), only)
    except HostsFileError as exc:
        raise click.UsageError(str(exc)) from exc


def _print_programs(report: Report) -> None:
    rows = [
        [
            one.host,
            one.program,
            one.state,
            "-" if one.pid is None else str(one.pid),
            one.bookie or "-",
            one.log or "-",
        ]
        for one in report.programs
    ]
    if rows:
        print_table(["host", "program", "state", "pid", "bookie", "output"], rows)
    for note in report.notes:
        print_note(note)


def _print_failures(report: Report) -> None:
    for failure in report.failures:
        print_note(f"{failure}\n    command on {failure.host}: {failure.command}")


def _print_json(cluster: HostedCluster, report: Report) -> None:
    print_json(
        {
            "uri": cluster.file.uri,
            "service": str(cluster.file.service),
            "programs": [attrs.asdict(one) | {"is_well": one.is_well} for one in report.programs],
            "pages": [{"host": host, "page": page} for host, page in report.pages],
            "notes": list(report.notes),
            "failed_step": report.reached or None,
            "failures": [attrs.asdict(failure) for failure in report.failures],
        }
    )


def _exit_code(report: Report) -> ExitCode:
    if not report.failures:
        return ExitCode.OK
    out_of_reach = any(failure.is_unreachable for failure in report.failures)
    return ExitCode.UNAVAILABLE if out_of_reach else ExitCode.FAILED
