"""Starts, stops and shows the programs of a hosts file.

Inside: the order, what runs at once, what a failure on one host means for the rest. Not inside: the commands
(``programs``), running one (``channel``).
Always: nothing starts before every host was reached and has its files. A failure stops no program that runs.
Nothing is deleted. A report names each host on which something failed, the command and its reason.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import attrs
import trio

from dlog.cluster.hosts import programs
from dlog.cluster.hosts.channel import CommandOutcome, run_there
from dlog.cluster.hosts.hosts_file import Host, HostsFile, HostsFileError
from dlog.cluster.hosts.programs import AUTORECOVERY, BOOKIE, ZOOKEEPER, Command

CHECK_TIMEOUT_S = 60.0
MARGIN_S = 30.0  # for the channel, beyond the time limit of the command itself
EXISTS, RUNS_ALREADY, NOT_FOUND = 4, 5, 3  # exit codes of `dlog`

Run = Callable[[Host, Command, float], Awaitable[CommandOutcome]]


@attrs.frozen(kw_only=True)
class ProgramState:
    """One program of one host, as a command found or left it."""

    host: str
    program: str  # "zookeeper", "bookie" or "autorecovery"
    state: str  # "started", "running", "stopped", "killed", "not started", "ended" or "unknown"
    pid: int | None = None
    log: str | None = None  # the path of its output on the host
    bookie: str | None = None  # of a bookie: "writable", "read-only", "away"; None: not known

    @property
    def is_well(self) -> bool:
        """True if it runs, and a bookie is registered as writable."""
        return self.state in ("started", "running") and self.bookie in (None, "writable")


@attrs.frozen(kw_only=True)
class Failure:
    """A command that failed on a host."""

    host: str
    action: str  # such as "start bookie"
    command: str  # as it would be typed on the host; without the texts of stdin
    exit_code: int | None
    reason: str
    is_unreachable: bool

    def __str__(self) -> str:
        return f"{self.host}: {self.action}: {self.reason}"


@attrs.frozen(kw_only=True)
class Report:
    """The findings or changes of a command, and its failures."""

    programs: tuple[ProgramState, ...] = ()
    failures: tuple[Failure, ...] = ()
    notes: tuple[str, ...] = ()
    pages: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=False)  # host, address with its token
    reached: str = ""  # of a failed start: the step that did not succeed


class HostedCluster:
    """The cluster of a hosts file. The constructor does nothing.

    Args:
        only: The names of the hosts to work on; empty: all.
        run: Runs a command on a host; tests replace it.

    Raises:
        HostsFileError: ``only`` has a name that the file does not have.
    """

    def __init__(self, file: HostsFile, only: Sequence[str] = (), *, run: Run | None = None) -> None:
        names = [host.name for host in file.hosts]
        for name in only:
            if name not in names:
                raise HostsFileError(f"{file.path}: there is no host {name!r}; there are {', '.join(names)}")
        self.file = file
        self._hosts = [host for host in file.hosts if not only or host.name in only]
        self._run = run or _run_there
        self._failures: list[Failure] = []
        self._states: list[ProgramState] = []
        self._notes: list[str] = []
        self._pages: list[tuple[str, str]] = []

    def __repr__(self) -> str:
        return f"<HostedCluster of {self.file.path}: {', '.join(host.name for host in self._hosts)}>"

    async def start(self, *, timeout_s: float) -> Report:
        """Start the programs that do not run; return when they serve, or at the first step that failed.

        The steps: reach each host; write files; ZooKeeper; the cluster's metadata; bookies; the namespace;
        auto-recovery. If bookies fail on some hosts, the steps after continue as long as one bookie serves.
        If cancelled, programs may have been started.

        Args:
            timeout_s: For each program to serve.
        """
        self._forget()
        begin = partial(self._start_programs, timeout_s=timeout_s)
        steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
            ("reach the hosts", self._reach),
            ("write files", self._write_files),
            ("start ZooKeeper", partial(begin, ZOOKEEPER)),
            ("create the cluster's metadata", self._create_metadata),
            ("start bookies", partial(begin, BOOKIE)),
            ("bind the namespace", self._bind),
            ("start auto-recovery", partial(begin, AUTORECOVERY)),
        ]
        reached = ""
        for name, step in steps:
            before = len(self._failures)
            await step()
            if len(self._failures) > before:
                reached = reached or name
                if not any(one.program == BOOKIE for one in self._states):
                    break
        return self._report(reached)

    async def stop(self, *, grace_s: float) -> Report:
        """Stop the programs: auto-recovery and bookies first, then ZooKeeper. The data stay.

        A host that cannot be reached does not keep the others from being stopped. If cancelled, some programs
        may still run; call it again.
        """
        self._forget()
        for names in ((AUTORECOVERY, BOOKIE), (ZOOKEEPER,)):
            async with trio.open_nursery() as nursery:
                for host in self._hosts:
                    here = [name for name in names if name in programs.programs_of(host)]
                    nursery.start_soon(self._stop_programs, host, here, grace_s)
        return self._report("stop" if self._failures else "")

    async def status(self) -> Report:
        """Each program's state, and each bookie's state in the cluster."""
        self._forget()
        await self._each(self._hosts, self._show)
        running = {one.host for one in self._states if one.program == BOOKIE and one.state == "running"}
        asked = next((host for host in self._hosts if host.name in running), None)
        if asked is not None:  # without a bookie there may be no ZooKeeper to ask
            await self._add_bookie_states(asked)
        return self._report("status" if self._failures else "")

    async def _reach(self) -> None:
        versions: dict[str, str] = {}

        async def reach(host: Host) -> None:
            done = await self._do(host, "run dlog", programs.check_dlog(host), CHECK_TIMEOUT_S)
            if done is not None:
                versions[host.name] = done.output.strip()

        await self._each(self._hosts, reach)
        if len(set(versions.values())) > 1:
            found = ", ".join(f"{name}: {version}" for name, version in sorted(versions.items()))
            self._notes.append(f"the hosts have different versions: {found}")

    async def _write_files(self) -> None:
        async def write(host: Host) -> None:
            files: list[tuple[str, str, Command]] = []
            if host.zookeeper is not None:
                command = programs.write_zookeeper_files(self.file, host)
                files.append((ZOOKEEPER, str(programs.HostPaths(host).zookeeper_config), command))
            if host.bookie:
                command = programs.write_bookie_files(self.file, host)
                files.append((BOOKIE, str(programs.HostPaths(host).bookie_config), command))
            for program, path, command in files:
                done = await self._do(host, f"write {path}", command, CHECK_TIMEOUT_S)
                if done is None:
                    return
                if former := done.output.strip():
                    self._notes.append(
                        f"{host.name}: {path} has changed; the former one is {former}. If {program} runs"
                        " already, the new one counts from its next start"
                    )
            if host.bookie:
                command = programs.make_bookie_directories(host)
                await self._do(host, "make the bookie's directories", command, CHECK_TIMEOUT_S)
            if host.bookie and host.http_port is not None:
                done = await self._do(host, "make the token", programs.make_token(host), CHECK_TIMEOUT_S)
                if done is not None:
                    page = f"http://{host.http_host}:{host.http_port}/page#token={done.output.strip()}"
                    self._pages.append((host.name, page))

        await self._each(self._hosts, write)

    async def _start_programs(self, program: str, *, timeout_s: float) -> None:
        async def start(host: Host) -> None:
            command = programs.start_program(self.file, host, program, timeout_s=timeout_s)
            done = await self._do(
                host, f"start {program}", command, timeout_s + MARGIN_S, also_good=(RUNS_ALREADY,)
            )
            if done is None:
                return
            if done.exit_code == RUNS_ALREADY:
                self._states.append(ProgramState(host=host.name, program=program, state="running"))
                return
            document = _json(done) or {}
            self._states.append(
                ProgramState(
                    host=host.name,
                    program=program,
                    state="started",
                    pid=document.get("pid"),
                    log=document.get("log"),
                )
            )

        # At once: a member of ZooKeeper serves when a majority of the members runs.
        await self._each((host for host in self._hosts if program in programs.programs_of(host)), start)

    async def _create_metadata(self) -> None:
        host = self._hosts[0]
        command = programs.create_metadata(self.file, host)
        await self._do(host, "create the cluster's metadata", command, CHECK_TIMEOUT_S, also_good=(EXISTS,))

    async def _bind(self) -> None:
        host = self._hosts[0]
        await self._do(host, "bind the namespace", programs.bind_namespace(self.file, host), CHECK_TIMEOUT_S)

    async def _stop_programs(self, host: Host, names: Sequence[str], grace_s: float) -> None:
        async def stop(program: str) -> None:
            command = programs.stop_program(host, program, grace_s=grace_s)
            done = await self._do(
                host, f"stop {program}", command, grace_s + MARGIN_S, also_good=(NOT_FOUND,)
            )
            if done is None:
                return
            ended = "killed" if done.error.strip() else "stopped"
            state = "not started" if done.exit_code == NOT_FOUND else ended
            self._states.append(ProgramState(host=host.name, program=program, state=state))

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(stop, name)

    async def _show(self, host: Host) -> None:
        # The exit code 1 also says that a program has ended, and then there is a document.
        outcome = await self._run(host, programs.show_programs(host), CHECK_TIMEOUT_S)
        documents = _json(outcome)
        if not isinstance(documents, list):
            self._fail(host, "show the programs", programs.show_programs(host), outcome)
            found: dict[str, Any] | None = None
        else:
            found = {each["name"]: each for each in documents}
        for program in programs.programs_of(host):
            one = (found or {}).get(program)
            state = "unknown" if found is None else "not started"
            if one is not None:
                state = "running" if one["running"] else "ended"
            self._states.append(
                ProgramState(
                    host=host.name,
                    program=program,
                    state=state,
                    pid=one["pid"] if one is not None and one["running"] else None,
                    log=None if one is None else one["log"],
                )
            )

    async def _add_bookie_states(self, asked: Host) -> None:
        command = programs.list_bookies(self.file, asked)
        done = await self._do(asked, "list the bookies", command, CHECK_TIMEOUT_S)
        if done is None:
            return
        of_id = {each["bookie"]: each["state"] for each in _json(done) or []}
        ids = {host.name: host.bookie_id for host in self._hosts}
        self._states = [
            attrs.evolve(one, bookie=of_id.get(ids[one.host], "not registered"))
            if one.program == BOOKIE
            else one
            for one in self._states
        ]

    async def _do(
        self, host: Host, action: str, command: Command, timeout_s: float, *, also_good: Sequence[int] = ()
    ) -> CommandOutcome | None:
        """Run a command; None, and one more failure, if it did not succeed."""
        outcome = await self._run(host, command, timeout_s)
        if outcome.exit_code is not None and (outcome.exit_code == 0 or outcome.exit_code in also_good):
            return outcome
        self._fail(host, action, command, outcome)
        return None

    def _fail(self, host: Host, action: str, command: Command, outcome: CommandOutcome) -> None:
        self._failures.append(
            Failure(
                host=host.name,
                action=action,
                command=command.shown,
                exit_code=outcome.exit_code,
                reason=outcome.reason,
                is_unreachable=outcome.is_unreachable,
            )
        )

    async def _each(self, hosts: Iterable[Host], work: Callable[[Host], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:
            for host in hosts:
                nursery.start_soon(work, host)

    def _forget(self) -> None:
        self._failures, self._states, self._notes, self._pages = [], [], [], []

    def _report(self, reached: str) -> Report:
        order = {
            (host.name, program): (at, number)
            for at, host in enumerate(self._hosts)
            for number, program in enumerate(programs.programs_of(host))
        }
        names = [host.name for host in self._hosts]
        return Report(
            programs=tuple(sorted(self._states, key=lambda one: order[one.host, one.program])),
            failures=tuple(sorted(self._failures, key=lambda one: names.index(one.host))),
            notes=tuple(self._notes),
            pages=tuple(self._pages),
            reached=reached,
        )


async def _run_there(host: Host, command: Command, timeout_s: float) -> CommandOutcome:
    return await run_there(host, command, timeout_s=timeout_s)


def _json(outcome: CommandOutcome) -> Any:
    """The document on stdout; None if there is none."""
    try:
        return json.loads(outcome.output)
    except (ValueError, RecursionError):
        return None
