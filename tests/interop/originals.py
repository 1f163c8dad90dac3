"""Apache's programs and ours, started side by side on this machine over a real ZooKeeper.

Inside: command lines and configuration files, bookies of both kinds, clusters, readiness. Not inside: jars
(``jars``), processes as such (``processes``), what a driver is asked (``driver``, ``java/interop``).
Always: a server counts as started when it answers a request and, for a bookie, when it is registered by a
session of its own; everything listens on 127.0.0.1 only.

One ZooKeeper serves all clusters of a version; each cluster has its own ledgers root.
"""

from __future__ import annotations

import random
import shutil
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import trio
from driver import Driver
from jars import LOGGING, class_path, find_program
from processes import Process, Processes

from dlog.cluster.ports import free_ports
from ledger.errors import WireError
from ledger.wire import v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest
from namespace.errors import NoNodeError
from namespace.store import MetadataStore
from namespace.zookeeper import open_zookeeper_store

HOST = "127.0.0.1"
START_TIMEOUT_S = 90.0
PROBE_TIMEOUT_S = 5.0
SESSION_TIMEOUT_MS = 4_000  # a killed bookie's registration goes after that
Kind = Literal["java", "ours"]
T = TypeVar("T")


class Originals:
    """One release of Apache's programs, and one ZooKeeper of it that is started when first needed."""

    def __init__(self, version: str, directory: Path) -> None:
        self.version, self.directory = version, directory
        self.processes = Processes(directory / "logs")
        self._class_path = class_path(version)
        self._rng = random.Random()
        self._zookeeper_port: int | None = None
        self._names: dict[str, int] = {}

    @property
    def logs(self) -> Path:
        """Where every process's log is."""
        return self.processes.logs

    @property
    def zookeeper_hosts(self) -> str:
        """Connect string of the running ZooKeeper."""
        if self._zookeeper_port is None:
            self._zookeeper_port = self._start_zookeeper()
        return f"{HOST}:{self._zookeeper_port}"

    def uri(self, root: str, *, layout: str = "null") -> str:
        """The metadata service URI of a ledgers root, for either side's configuration."""
        return f"zk+{layout}://{self.zookeeper_hosts}{root}"

    def free_port(self) -> int:
        """One on which nobody listens now."""
        return free_ports(1, self._rng, host=HOST)[0]

    def fresh(self, kind: str) -> str:
        """A name nobody has used yet, such as ``java-bookie-3``."""
        self._names[kind] = self._names.get(kind, 0) + 1
        return f"{kind}-{self._names[kind]}"

    def java(
        self, main_class: str, *arguments: str, heap_mib: int = 128, options: Sequence[str] = ()
    ) -> list[str]:
        """The command that runs one of Apache's classes, or of our drivers."""
        return [
            find_program("java"),
            f"-Xmx{heap_mib}m",
            "-XX:MaxDirectMemorySize=128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",  # these processes live for seconds
            "-Djava.net.preferIPv4Stack=true",  # lo may have ::1 first, of which a bookie makes no valid id
            f"-Dlog4j.configurationFile={LOGGING}",
            *options,
            "-cp",
            self._class_path,
            main_class,
            *arguments,
        ]

    def start_driver(self, name: str = "ledger-driver", main_class: str = "interop.LedgerDriver") -> Driver:
        """A Java process in conversation; ended with the rest, or by ``driver.process.stop()``."""
        name = self.fresh(name)
        driver = Driver(self.processes.start(name, self.java(main_class), piped=True))
        assert driver.ask("ping", timeout_s=START_TIMEOUT_S) == "pong"
        return driver

    def start_our_driver(self) -> Driver:
        """Our client in a process, in the same kind of conversation: to be killed, or stopped for a while."""
        name = self.fresh("our-driver")
        command = [sys.executable, str(Path(__file__).with_name("our_driver.py")), self.zookeeper_hosts]
        driver = Driver(self.processes.start(name, command, piped=True))
        assert driver.ask("ping", timeout_s=START_TIMEOUT_S) == "pong"
        return driver

    def run_java(
        self, main_class: str, *arguments: str, name: str, timeout_s: float = 60, options: Sequence[str] = ()
    ) -> tuple[int, str]:
        """Run one of Apache's commands to its end; its exit code and what it printed, log lines included."""
        process = self.processes.start(self.fresh(name), self.java(main_class, *arguments, options=options))
        try:
            code = process.wait_ended(timeout_s=timeout_s)
        finally:
            process.stop(grace_s=0)
        return code, process.log.read_text("utf-8", "replace")

    def shell(self, bookie: Bookie, *arguments: str, timeout_s: float = 60) -> tuple[int, str]:
        """Run a command of Apache's bookie shell with a bookie's configuration."""
        return self.run_java(
            "org.apache.bookkeeper.bookie.BookieShell",
            "-conf",
            str(bookie.config),
            *arguments,
            name="shell",
            timeout_s=timeout_s,
        )

    def with_store(self, use: Callable[[MetadataStore], Awaitable[T]]) -> T:
        """Do something with a session of our own, from blocking code; also while a trio loop runs here."""
        hosts = self.zookeeper_hosts

        async def session() -> T:
            async with open_zookeeper_store(hosts) as store:
                return await use(store)

        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(trio.run(session))
            except BaseException as exc:
                errors.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def close(self) -> None:
        """End every process of this release."""
        self.processes.close()

    def _start_zookeeper(self) -> int:
        port = self.free_port()
        home = self.directory / "zookeeper"
        home.mkdir(parents=True)
        settings = {
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "dataDir": home / "data",
            "clientPort": port,
            "clientPortAddress": HOST,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        config = home / "zoo.cfg"
        config.write_text(_properties(settings))
        process = self.processes.start(
            "zookeeper",
            self.java(
                "org.apache.zookeeper.server.ZooKeeperServerMain",
                str(config),
                options=["-Dzookeeper.preAllocSize=4096", "-Dinterop.level=INFO"],
            ),
        )
        process.wait_ready(lambda: "Mode:" in _four_letters(port, b"srvr"), timeout_s=START_TIMEOUT_S)
        return port


class Bookie:
    """One bookie of either kind, which keeps its port and its directories over restarts."""

    def __init__(
        self,
        originals: Originals,
        kind: Kind,
        root: str,
        *,
        port: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.kind, self.root = kind, root
        self._originals = originals
        self.name = originals.fresh(f"{kind}-bookie")
        self.port = originals.free_port() if port is None else port
        self.home = originals.directory / self.name
        self.config = self.home / "bk_server.conf"
        self.settings: dict[str, object] = {
            "bookiePort": self.port,
            "listeningInterface": "lo",
            "advertisedAddress": HOST,
            "allowLoopback": "true",
            "metadataServiceUri": originals.uri(root),
            "zkTimeout": SESSION_TIMEOUT_MS,
            "journalDirectories": self.home / "journal",
            "ledgerDirectories": self.home / "ledgers",
            "journalPreAllocSizeMB": 1,
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.98,
            "minUsableSizeForEntryLogCreation": 100_000_000,
            **(settings or {}),
        }
        if kind == "java":
            for key in ("serverNumIOThreads", "numReadWorkerThreads", "numHighPriorityWorkerThreads"):
                self.settings.setdefault(key, 2)
        self._process: Process | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} bookie {self.id}, {self._process!r}>"

    @property
    def id(self) -> str:
        """Under which it registers."""
        return str(self.settings.get("bookieId", f"{HOST}:{self.port}"))

    @property
    def process(self) -> Process:
        """The process of its last start."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.is_running

    def launch(self, *, read_only: bool = False) -> Callable[[], None]:
        """Start its process; what is returned waits until it serves. So several may start at once."""
        assert not self.is_running
        for directory in (self.home / "journal", self.home / "ledgers"):
            directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text(_properties(self.settings))
        before = self._registered_by()
        if self.kind == "java":
            arguments = ["--conf", str(self.config), *(["--readOnly"] if read_only else [])]
            command = self._originals.java("org.apache.bookkeeper.server.Main", *arguments)
        else:
            if read_only:
                self.config.write_text(_properties({**self.settings, "forceReadOnlyBookie": "true"}))
            command = [sys.executable, "-m", "bookie", "--config", str(self.config)]
        process = self._process = self._originals.processes.start(self.name, command)

        def is_serving() -> bool:
            return bookie_answers(self.port) and self._registered_by() not in (None, before)

        return lambda: process.wait_ready(is_serving, timeout_s=START_TIMEOUT_S)

    def start(self, *, read_only: bool = False) -> None:
        """Start it, over whatever its directories hold; return once it serves and is registered."""
        self.launch(read_only=read_only)()

    def stop(self) -> None:
        """SIGTERM: it withdraws its registration."""
        self.process.stop()

    def kill(self) -> None:
        """SIGKILL: its registration stays until its session ends."""
        self.process.kill()

    def copy_directories(self, to: Path) -> None:
        """Copy what it stores; it must not run."""
        assert not self.is_running
        shutil.copytree(self.home, to)

    def restore_directories(self, source: Path) -> None:
        """Replace what it stores by a copy; it must not run."""
        assert not self.is_running
        shutil.rmtree(self.home)
        shutil.copytree(source, self.home)

    def _registered_by(self) -> int | None:
        """The session that holds its registration, or None."""

        async def owner(store: MetadataStore) -> int | None:
            for parent in ("available", "available/readonly"):
                try:
                    return (await store.get(f"{self.root}/{parent}/{self.id}")).stat.ephemeral_owner
                except NoNodeError:
                    continue
            return None

        return self._originals.with_store(owner)


class Cluster:
    """Bookies under one ledgers root."""

    def __init__(self, originals: Originals, root: str) -> None:
        self.originals, self.root = originals, root
        self.bookies: list[Bookie] = []

    @property
    def uri(self) -> str:
        """For configurations of either side."""
        return self.originals.uri(self.root)

    def add(self, *kinds: Kind, **settings: object) -> list[Bookie]:
        """Start bookies, all at once; return once they serve."""
        added = [Bookie(self.originals, kind, self.root, settings=settings) for kind in kinds]
        self.bookies += added
        for wait in [bookie.launch() for bookie in added]:
            wait()
        return added

    def running(self, kind: Kind | None = None) -> list[Bookie]:
        """Its bookies that run, of one kind or of both."""
        return [bookie for bookie in self.bookies if bookie.is_running and kind in (None, bookie.kind)]

    def by_id(self, bookie_id: str) -> Bookie:
        """The bookie that ledger metadata names so."""
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    def stop(self) -> None:
        """Stop every bookie that runs; their directories stay."""
        running = self.running()
        for bookie in running:
            bookie.process.ask_to_stop()
        for bookie in running:
            bookie.stop()

    def start(self) -> None:
        """Start every bookie that does not run, over what its directories hold."""
        for wait in [bookie.launch() for bookie in self.bookies if not bookie.is_running]:
            wait()


def bookie_answers(port: int) -> bool:
    """Whether the bookie on a port answers a request; an open port is not yet one that does."""
    frames = FrameBuffer()
    try:
        with socket.create_connection((HOST, port), PROBE_TIMEOUT_S) as connection:
            connection.sendall(v3.encode_request(BookieInfoRequest(), transaction_id=1))
            while chunk := connection.recv(65536):
                data, found = frames.feed(chunk)
                for start, end in found:
                    return isinstance(v3.decode_reply(data, start, end).reply, BookieInfoReply)
    except (OSError, WireError):
        pass  # not yet, or it resets connections while its predecessor's session lives
    return False


def _four_letters(port: int, word: bytes) -> str:
    answer = b""
    try:
        with socket.create_connection((HOST, port), PROBE_TIMEOUT_S) as connection:
            connection.sendall(word)
            while chunk := connection.recv(65536):
                answer += chunk
    except OSError:
        pass  # not there yet
    return answer.decode("utf-8", "replace")


def _properties(settings: dict[str, object]) -> str:
    def escaped(value: str) -> str:
        # In a properties file a backslash escapes; in Apache's reader a comma makes a list.
        return value.replace("\\", "\\\\").replace(",", "\\,")

    return "".join(f"{key}={escaped(str(value))}\n" for key, value in settings.items())
