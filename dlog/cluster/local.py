"""A ZooKeeper and N bookies as processes of this machine: start, show, kill and stop them.

Inside: the order of starting and stopping, waiting until each process serves, the state file between two
commands.
Not inside: the layout of the directory (``layout``), one process (``process``), ZooKeeper's command line
(``zookeeper_process``).
Always: at most one program at a time starts or stops processes of a directory. A failed or cancelled start
stops the processes that it started. Only recorded processes get signals.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import attrs
import trio

from dlog.cluster import process, zookeeper_process
from dlog.cluster.certificates import write_security
from dlog.cluster.files import disk_bytes, last_message_of, try_lock
from dlog.cluster.guardian import open_guardian
from dlog.cluster.layout import (
    LEDGERS_ROOT,
    LOCALHOST,
    SESSION_TIMEOUT_MS,
    ClusterPaths,
    ClusterState,
    Member,
    bookie_config_text,
    bookie_id,
    decode_state,
    encode_state,
    name_the_index,
    new_state,
)
from dlog.cluster.ports import free_ports
from dlog.cluster.probe import Answer, ask_bookie
from dlog.cluster.process import ProcessId, ProcessStats
from dlog.cluster.registry import bind_namespace, query_registrations, registrations
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.metadata_store.zookeeper_security import ENVIRONMENT_VARIABLE, NO_SECURITY
from ledger.runtime.tasks.trio_only import check_trio
from ledger.transport import bookie_security
from ledger.transport.dial import Address

START_TIMEOUT_S = 60.0
STOP_GRACE_S = 20.0
LOCK_TIMEOUT_S = 120.0
POLL_S = 0.05
PROBE_TIMEOUT_S = 2.0
INSTEAD = "the command dlog cluster"  # without trio


class ClusterError(Exception):
    """A local cluster could not be started, stopped or found; the message has the cause and the log files."""


@attrs.frozen
class MemberStatus:
    """The state of one process of a cluster."""

    name: str
    pid: int | None
    port: int
    running: bool
    registered: bool | None  # None for ZooKeeper itself, or if ZooKeeper does not reply
    readonly: bool | None
    answers: bool
    data_bytes: int  # disk use of its directory
    free_bytes: int | None  # free disk space that the bookie reports
    log: str
    http_port: int | None = None  # of its metrics; None: it has no HTTP server

    @property
    def is_well(self) -> bool:
        """True if the process runs and replies, and a bookie is registered as writable."""
        return self.running and self.answers and self.registered is not False and not self.readonly


class LocalCluster:
    """The cluster of one directory. The constructor starts nothing; tests use ``open_local_cluster``."""

    def __init__(
        self,
        directory: Path,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        zookeeper_jars: Path | None = None,
        rng: random.Random | None = None,
        group: int | None = None,
    ) -> None:
        self.paths = ClusterPaths(directory.absolute())
        self._session_timeout_ms = session_timeout_ms
        self._zookeeper_jars = zookeeper_jars
        self._rng = rng or random.Random()
        self._group = group  # the process group of the members; None: they outlive this process

    def __repr__(self) -> str:
        return f"<LocalCluster in {self.paths.directory}>"

    @property
    def exists(self) -> bool:
        """True if the directory has the state file of a cluster."""
        return self.paths.state.exists()

    @property
    def state(self) -> ClusterState:
        """The recorded state.

        Raises:
            ClusterError: The directory has no cluster.
            ClusterStateError: The state file does not parse.
        """
        try:
            text = self.paths.state.read_text("utf-8")
        except FileNotFoundError:
            raise ClusterError(
                f"there is no cluster in {self.paths.directory}; `dlog cluster start` creates one"
            ) from None
        return decode_state(text, self.paths.state)

    @property
    def uri(self) -> str:
        """The URI of the cluster's default namespace."""
        return self.state.uri

    @property
    def zookeeper_hosts(self) -> str:
        """ZooKeeper's connection string."""
        return self.state.zookeeper_hosts

    async def start(
        self,
        *,
        bookie_count: int | None = None,
        timeout_s: float = START_TIMEOUT_S,
        has_page: bool = False,
        has_recovery: bool = False,
        secure: bool = False,
        only: Sequence[str] = (),
    ) -> ClusterState:
        """Start the processes that do not run; return when every bookie is registered and replies.

        If cancelled or failing, the call stops the processes that it started.

        Args:
            bookie_count: A greater number than before adds bookies. None keeps the number; a new cluster gets
                3.
            has_page: Bookies that are added serve the page over HTTP, and auto-recovery its metrics. It needs
                the extra `admin`.
            has_recovery: A process restores the replicas of lost bookies, also at later starts.
            secure: A new cluster gets certificates and mutual TLS. It needs the extra `security`.
            only: The names of the processes to start; empty: all.

        Raises:
            ClusterError: There is no process of a name, or one ended or did not serve in time, or the cluster
                has more bookies than ``bookie_count``.
        """
        check_trio("dlog.cluster.LocalCluster", INSTEAD)
        async with self._locked():
            state = self._grown(bookie_count, has_page=has_page, has_recovery=has_recovery, secure=secure)
            started: list[str] = []
            try:
                with trio.fail_after(timeout_s):
                    chosen = self._chosen(state, only)
                    if state.zookeeper.name in chosen:
                        await self._start_zookeeper(state, started)
                    bookies = [bookie for bookie in state.bookies if bookie.name in chosen]
                    if bookies or not only:
                        await self._start_bookies(bookies, started)
                    if state.recovery is not None and state.recovery.name in chosen:
                        self._start_recovery(started)
            except BaseException as error:
                with trio.CancelScope(shield=True):
                    await self._stop_members(started, grace_s=5)
                if isinstance(error, trio.TooSlowError):
                    raise ClusterError(
                        f"the cluster in {self.paths.directory} did not serve within {timeout_s:g} s; see the"
                        f" logs in {self.paths.log('').parent}"
                    ) from error
                raise
            return self.state

    async def stop(self, *, grace_s: float = STOP_GRACE_S, only: Sequence[str] = ()) -> list[str]:
        """Stop every running process, bookies first; return the names of the processes that were killed.

        If cancelled, some processes may still run; call it again.

        Args:
            only: The names of the processes to stop; empty: all.

        Raises:
            ClusterError: There is no cluster, or no process of a name. Nothing was stopped.
        """
        check_trio("dlog.cluster.LocalCluster", INSTEAD)
        async with self._locked():
            return await self._stop_members(self._chosen(self.state, only), grace_s=grace_s)

    def _chosen(self, state: ClusterState, only: Sequence[str]) -> list[str]:
        names = [member.name for member in state.members]
        for name in only:
            if name not in names:
                known = ", ".join(names)
                raise ClusterError(
                    f"the cluster in {self.paths.directory} has no process {name!r}, but {known}"
                )
        return list(only) or names

    async def status(self) -> list[MemberStatus]:
        """The state of each process, ZooKeeper first."""
        check_trio("dlog.cluster.LocalCluster", INSTEAD)
        state = self.state
        registered = None
        if state.zookeeper.process is not None and process.is_alive(state.zookeeper.process):
            registered = await query_registrations(state.zookeeper_hosts, timeout_s=PROBE_TIMEOUT_S)
        statuses: list[MemberStatus] = []
        for member in state.members:
            running = member.process is not None and process.is_alive(member.process)
            if member is state.zookeeper:
                statuses.append(self._member_status(member, running, registered is not None))
                continue
            if member is state.recovery:
                statuses.append(self._member_status(member, running, running))
                continue
            info = await self._ask(member) if running else None
            node = None if registered is None else registered.get(bookie_id(member))
            status = self._member_status(member, running, info is not None)
            statuses.append(
                attrs.evolve(
                    status,
                    registered=None if registered is None else node is not None,
                    readonly=None if node is None else node.readonly,
                    free_bytes=info.free_disk_bytes if info else None,
                )
            )
        return statuses

    def kill(self, index: int) -> None:
        """SIGKILL the bookie with this index (0: bookie-1); ``restart`` starts it again."""
        self._kill(self.state.bookies[index])

    def kill_zookeeper(self) -> None:
        """SIGKILL ZooKeeper."""
        self._kill(self.state.zookeeper)

    async def restart(self, index: int, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start a killed or stopped bookie on its directories; return when it serves.

        If cancelled, the bookie may run.

        Raises:
            ClusterError: The bookie still runs, ended, or did not serve in time.
        """
        check_trio("dlog.cluster.LocalCluster", INSTEAD)
        member = self.state.bookies[index]
        if member.process is not None and process.is_alive(member.process):
            raise ClusterError(f"{member.name} still runs; kill or stop it first")
        with trio.move_on_after(timeout_s):
            await self._start_bookies([member], [])
            return
        raise ClusterError(
            f"{member.name} did not serve within {timeout_s:g} s; see its log {self.paths.log(member.name)}"
        )

    async def terminate(self, index: int, *, grace_s: float = STOP_GRACE_S) -> bool:
        """Stop one bookie with SIGTERM; return False if SIGKILL was necessary after ``grace_s``."""
        check_trio("dlog.cluster.LocalCluster", INSTEAD)
        member = self.state.bookies[index]
        return member.process is None or await process.stop(member.process, grace_s=grace_s)

    def stats(self) -> list[ProcessStats | None]:
        """The resource use of each bookie so far; None for a bookie that does not run."""
        return [
            None if bookie.process is None else process.stats(bookie.process) for bookie in self.state.bookies
        ]

    async def _ask(self, bookie: Member) -> Answer | None:
        address = Address(LOCALHOST, bookie.port)
        return await ask_bookie(address, self.paths.bookie_config(bookie.name), timeout_s=PROBE_TIMEOUT_S)

    def _grown(
        self, bookie_count: int | None, *, has_page: bool, has_recovery: bool, secure: bool
    ) -> ClusterState:
        """Record and return the state for a start: a new one, or the old one with added bookies."""
        if not self.exists:
            count = 3 if bookie_count is None else bookie_count
            state = attrs.evolve(
                new_state(count, free_ports(count + 1, self._rng, host=LOCALHOST)), secure=secure
            )
            first = 0
        else:
            state = self.state
            if secure and not state.secure:
                raise ClusterError(
                    f"the cluster in {self.paths.directory} was made without security; start a secured one in"
                    " another directory"
                )
            missing = 0 if bookie_count is None else bookie_count - len(state.bookies)
            if missing < 0:
                raise ClusterError(
                    f"the cluster in {self.paths.directory} has {len(state.bookies)} bookies with data and"
                    f" cannot shrink to {bookie_count}; start a cluster of that size in another directory"
                )
            ports = free_ports(missing, self._rng, host=LOCALHOST)
            more = [
                Member(f"bookie-{number}", port) for number, port in enumerate(ports, len(state.bookies) + 1)
            ]
            first = len(state.bookies)
            state = attrs.evolve(state, bookies=(*state.bookies, *more))
        if has_page and (added := state.bookies[first:]):
            write_token(self.paths.token)
            ports = free_ports(len(added), self._rng, host=LOCALHOST)
            served = [attrs.evolve(each, http_port=port) for each, port in zip(added, ports, strict=True)]
            state = attrs.evolve(state, bookies=(*state.bookies[:first], *served))
        if has_recovery and state.recovery is None:
            port = free_ports(1, self._rng, host=LOCALHOST)[0] if has_page else None
            state = attrs.evolve(state, recovery=Member("autorecovery", 0, http_port=port))
        if state.secure:
            _write_security(self.paths, state.uri)
        self._record(state)
        return state

    async def _start_zookeeper(self, state: ClusterState, started: list[str]) -> None:
        member = state.zookeeper
        home = self.paths.home(member.name)
        if member.process is None or not process.is_alive(member.process):
            home.mkdir(parents=True, exist_ok=True)
            command = zookeeper_process.prepare(home, member.port, self._zookeeper_jars)
            self._spawn(member, command, started)
        while not await zookeeper_process.is_serving(member.port, home):
            self._check_running([member.name])
            await trio.sleep(POLL_S)

    async def _start_bookies(self, bookies: Sequence[Member], started: list[str]) -> None:
        """Start the bookies that do not run; return when all of them are registered and reply."""
        async with open_zookeeper_store(self.zookeeper_hosts, security=NO_SECURITY) as store:
            former = await registrations(store)
            for bookie in bookies:
                if bookie.process is None or not process.is_alive(bookie.process):
                    self._start_bookie(bookie, started)
                else:
                    former.pop(bookie_id(bookie), None)
            waiting = list(bookies)
            while waiting:
                self._check_running([bookie.name for bookie in waiting])
                present = await registrations(store)
                waiting = [
                    bookie
                    for bookie in waiting
                    if (node := present.get(bookie_id(bookie))) is None
                    # The node is from the killed process, whose session has not ended yet.
                    or node.session_id == getattr(former.get(bookie_id(bookie)), "session_id", None)
                    or await self._ask(bookie) is None
                ]
                if waiting:
                    await trio.sleep(POLL_S)
            await bind_namespace(store, self.zookeeper_hosts)

    def _start_bookie(self, member: Member, started: list[str]) -> None:
        home = self.paths.home(member.name)
        for directory in (home / "journal", home / "ledgers"):
            directory.mkdir(parents=True, exist_ok=True)
        config = self.paths.bookie_config(member.name)
        if not config.exists():
            text = bookie_config_text(
                self.paths, self.state, member, session_timeout_ms=self._session_timeout_ms
            )
            config.write_text(text, "utf-8")
        else:  # an operator may have edited it
            name_the_index(config)
        self._spawn(
            member, [sys.executable, "-m", "dlog.cli.main", "bookie", "--config", str(config)], started
        )

    def _start_recovery(self, started: list[str]) -> None:
        state = self.state
        member = state.recovery
        if member is None or (member.process is not None and process.is_alive(member.process)):
            return
        self.paths.home(member.name).mkdir(parents=True, exist_ok=True)
        where = f"zk://{state.zookeeper_hosts}{LEDGERS_ROOT}"
        command = [sys.executable, "-m", "dlog.cli.main", "autorecovery", "--service", where, "--id", "local"]
        if member.http_port is not None:
            command += ["--http-port", str(member.http_port)]
        self._spawn(member, command, started)

    def _spawn(self, member: Member, command: Sequence[str], started: list[str]) -> None:
        # Listed first, so that the clean-up covers the process even if it cannot be recorded.
        started.append(member.name)
        identity = process.start_detached(
            command, self.paths.log(member.name), environment=self._environment(), group=self._group
        )
        try:
            self._record(self.state.with_process(member.name, identity))
        except BaseException:
            process.send_signal(identity, signal.SIGKILL)
            raise

    def _environment(self) -> dict[str, str]:
        """Ours, without the identity for another ZooKeeper: the one of this machine knows no users."""
        ours = {name: value for name, value in os.environ.items() if name != ENVIRONMENT_VARIABLE}
        if self.state.secure:
            ours[bookie_security.ENVIRONMENT_VARIABLE] = str(self.paths.bookie_security)
        return ours

    def _check_running(self, names: Sequence[str]) -> None:
        for member in self.state.members:
            if member.name in names and (member.process is None or not process.is_alive(member.process)):
                log = self.paths.log(member.name)
                raise ClusterError(
                    f"{member.name} ended right after its start; the last message in its log {log}:"
                    f" {last_message_of(log)}"
                )

    async def _stop_members(self, names: Sequence[str], *, grace_s: float) -> list[str]:
        killed: list[str] = []

        async def stop(member: Member, identity: ProcessId) -> None:
            if not await process.stop(identity, grace_s=grace_s):
                killed.append(member.name)

        state = self.state
        # Bookies stop first, in parallel: they need ZooKeeper to delete their nodes.
        recovery = () if state.recovery is None else (state.recovery,)
        for members in ((*state.bookies, *recovery), (state.zookeeper,)):
            async with trio.open_nursery() as nursery:
                for member in members:
                    if member.name in names and member.process is not None:
                        nursery.start_soon(stop, member, member.process)
            for member in members:
                if member.name in names:
                    state = state.with_process(member.name, None)
            self._record(state)
        return killed

    def _kill(self, member: Member) -> None:
        if member.process is None:
            raise ClusterError(f"{member.name} does not run")
        process.send_signal(member.process, signal.SIGKILL)
        process.wait_killed(member.process)

    def _member_status(self, member: Member, running: bool, answers: bool) -> MemberStatus:
        return MemberStatus(
            name=member.name,
            pid=member.process.pid if member.process is not None and running else None,
            port=member.port,
            running=running,
            registered=None,
            readonly=None,
            answers=answers,
            data_bytes=disk_bytes(self.paths.home(member.name)),
            free_bytes=None,
            log=str(self.paths.log(member.name)),
            http_port=member.http_port,
        )

    def _record(self, state: ClusterState) -> None:
        self.paths.directory.mkdir(parents=True, exist_ok=True)
        partial = self.paths.state.with_suffix(".new")
        partial.write_text(encode_state(state), "utf-8")
        partial.replace(self.paths.state)

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        self.paths.directory.mkdir(parents=True, exist_ok=True)
        with self.paths.lock.open("ab") as file:
            deadline = trio.current_time() + LOCK_TIMEOUT_S
            while not try_lock(file.fileno()):
                if trio.current_time() > deadline:
                    raise ClusterError(
                        f"another program has held {self.paths.lock} for {LOCK_TIMEOUT_S:g} s to start or"
                        " stop the cluster; wait for that program, or end it"
                    )
                await trio.sleep(POLL_S)
            yield  # closing the file releases the lock


@contextlib.asynccontextmanager
async def open_local_cluster(
    directory: Path,
    *,
    bookie_count: int = 3,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
    zookeeper_jars: Path | None = None,
    has_page: bool = False,
    has_recovery: bool = False,
    secure: bool = False,
) -> AsyncIterator[LocalCluster]:
    """Start a cluster; stop its processes at the end of the block. Its files stay.

    The processes end with this process, also when this process is killed.

    Args:
        session_timeout_ms: The bookies' ZooKeeper session timeout. A killed bookie can register again after
            about this time.
        zookeeper_jars: The directory of ZooKeeper's jars. None takes ``DLOG_ZOOKEEPER_JARS``, else the jars
            of an installed PySpark, else Debian's.
        has_page, has_recovery, secure: See ``LocalCluster.start``.

    Raises:
        ClusterError: The cluster could not be started.
        ZookeeperNotInstalledError: Java or ZooKeeper's jars are missing.
    """
    check_trio("dlog.cluster.open_local_cluster", INSTEAD)
    with open_guardian() as group:
        cluster = LocalCluster(
            directory, session_timeout_ms=session_timeout_ms, zookeeper_jars=zookeeper_jars, group=group
        )
        await cluster.start(
            bookie_count=bookie_count, has_page=has_page, has_recovery=has_recovery, secure=secure
        )
        try:
            yield cluster
        finally:
            with trio.CancelScope(shield=True):
                await cluster.stop(grace_s=10)


def _write_security(paths: ClusterPaths, uri: str) -> None:
    try:
        write_security(paths, uri)
    except ImportError as error:
        raise ClusterError(
            "certificates need the package cryptography: pip install '.[security]' in a checkout of DLog"
        ) from error


TOKEN_BYTES = 24


def write_token(path: Path) -> None:
    """Write a new random token, unless the file exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
