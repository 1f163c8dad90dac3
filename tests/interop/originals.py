"""Apache's programs and ours, started side by side on this machine over a real ZooKeeper.

Inside: command lines and configuration files, bookies of both kinds, clusters, readiness. Not inside: jars
(``jars``), processes (``processes``), requests to a driver (``driver``, ``java/interop``).
Always: a server counts as started once it replies to a request; a bookie must also be registered, by a
session of its new process. Everything listens on 127.0.0.1 only.

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

from dlog.cluster.ports import free_ports
from ledger.errors import WireError
from ledger.metadata_store.errors import NoNodeError
from ledger.metadata_store.store import MetadataStore
from ledger.metadata_store.zookeeper import open_zookeeper_store
from ledger.wire import v3
from ledger.wire.frame import FrameBuffer
from ledger.wire.messages import BookieInfoReply, BookieInfoRequest, RefusedReply
from tests.class_archive import using
from tests.interop.driver import Driver
from tests.interop.jars import LOGGING, class_archive, class_path, find_program
from tests.interop.processes import Process, Processes

HOST = "127.0.0.1"
START_TIMEOUT_S = 180.0
PROBE_TIMEOUT_S = 15.0
SESSION_TIMEOUT_MS = 4_000  # after which a killed bookie's registration disappears
OPTIONS = (
    "-XX:MaxDirectMemorySize=128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # these processes live for seconds
    # lo may have ::1 first, from which a bookie makes an invalid id.
    "-Djava.net.preferIPv4Stack=true",
    f"-Dlog4j.configurationFile={LOGGING}",
)
Kind = Literal["java", "ours"]
T = TypeVar("T")


class Originals:
    """One release of Apache's programs, and a ZooKeeper of it, which starts when it is first needed."""

    def __init__(self, version: str, directory: Path) -> None:
        self.version, self.directory = version, directory
        self.processes = Processes(directory / "logs")
        self._class_path, self._archive = class_path(version), using(class_archive(version, OPTIONS))
        self._rng = random.Random()
        self._zookeeper_port: int | None = None
        self._names: dict[str, int] = {}

    @property
    def logs(self) -> Path:
        """The directory with the logs of all processes."""
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
        """A port on which no process listens now."""
        return free_ports(1, self._rng, host=HOST)[0]

    def fresh(self, kind: str) -> str:
        """Return an unused name, such as ``java-bookie-3``."""
        self._names[kind] = self._names.get(kind, 0) + 1
        return f"{kind}-{self._names[kind]}"

    def java(
        self, main_class: str, *arguments: str, heap_mib: int = 128, options: Sequence[str] = ()
    ) -> list[str]:
        """The command that runs one of Apache's classes, or of our drivers."""
        return [
            find_program("java"),
            f"-Xmx{heap_mib}m",
            *OPTIONS,
            *self._archive,
            *options,
            "-cp",
            self._class_path,
            main_class,
            *arguments,
        ]

    def start_driver(
        self,
        name: str = "ledger-driver",
        main_class: str = "interop.LedgerDriver",
        options: Sequence[str] = (),
    ) -> Driver:
        """Start a Java driver. ``close`` ends it, or ``driver.process.stop()``."""
        name = self.fresh(name)
        driver = Driver(self.processes.start(name, self.java(main_class, options=options), piped=True))
        assert driver.ask("ping", timeout_s=START_TIMEOUT_S) == "pong"
        return driver

    def start_our_driver(self) -> Driver:
        """Start our client as a driver process, which a test may kill or pause."""
        name = self.fresh("our-driver")
        command = [sys.executable, "-m", "tests.interop.our_driver", self.zookeeper_hosts]
        driver = Driver(self.processes.start(name, command, piped=True))
        assert driver.ask("ping", timeout_s=START_TIMEOUT_S) == "pong"
        return driver

    def run_java(
        self, main_class: str, *arguments: str, name: str, timeout_s: float = 180, options: Sequence[str] = ()
    ) -> tuple[int, str]:
        """Run one of Apache's commands to its end; return its exit code and its output with log lines."""
        process = self.processes.start(self.fresh(name), self.java(main_class, *arguments, options=options))
        try:
            code = process.wait_ended(timeout_s=timeout_s)
        finally:
            process.stop(grace_s=0)
        return code, process.log.read_text("utf-8", "replace")

    def shell(self, bookie: Bookie, *arguments: str, timeout_s: float = 180) -> tuple[int, str]:
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
        """Run ``use`` with a ZooKeeper session, from blocking code; works while a trio loop runs here."""
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
    """One bookie of either kind; it keeps its port and directories over restarts."""

    def __init__(
        self,
        originals: Originals,
        kind: Kind,
        root: str,
        *,
        port: int | None = None,
        settings: Mapping[str, object] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self.kind, self.root = kind, root
        self._java_options = java_options
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
        """The id under which the bookie registers."""
        return str(self.settings.get("bookieId", f"{HOST}:{self.port}"))

    @property
    def process(self) -> Process:
        """The process of the last start."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def is_running(self) -> bool:
        """True if the bookie was started and has not ended."""
        return self._process is not None and self._process.is_running

    def launch(self, *, read_only: bool = False) -> Callable[[], None]:
        """Start the process without waiting; the returned function waits until the bookie serves."""
        assert not self.is_running
        for directory in (self.home / "journal", self.home / "ledgers"):
            directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text(_properties(self.settings))
        before = self._registered_by()
        if self.kind == "java":
            arguments = ["--conf", str(self.config), *(["--readOnly"] if read_only else [])]
            command = self._originals.java(
                "org.apache.bookkeeper.server.Main", *arguments, options=self._java_options
            )
        else:
            if read_only:
                self.config.write_text(_properties({**self.settings, "forceReadOnlyBookie": "true"}))
            command = [sys.executable, "-m", "bookie", "--config", str(self.config)]
        process = self._process = self._originals.processes.start(self.name, command)

        def is_serving() -> bool:
            return bookie_replies(self.port) and self._registered_by() not in (None, before)

        return lambda: process.wait_ready(is_serving, timeout_s=START_TIMEOUT_S)

    def start(self, *, read_only: bool = False) -> None:
        """Start the bookie on its directories as they are; return once it serves and is registered."""
        self.launch(read_only=read_only)()

    def stop(self) -> None:
        """Send SIGTERM and wait; the bookie withdraws its registration."""
        self.process.stop()

    def kill(self) -> None:
        """Send SIGKILL; the registration remains until the session expires."""
        self.process.kill()

    def copy_directories(self, to: Path) -> None:
        """Copy the bookie's directories; it must not run."""
        assert not self.is_running
        shutil.copytree(self.home, to)

    def restore_directories(self, source: Path) -> None:
        """Replace the bookie's directories by a copy; it must not run."""
        assert not self.is_running
        shutil.rmtree(self.home)
        shutil.copytree(source, self.home)

    def _registered_by(self) -> int | None:
        """The id of the session that holds the registration, or None."""

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

    def __init__(self, originals: Originals, root: str, *, java_options: Sequence[str] = ()) -> None:
        """``java_options``: of the JVM of each Java bookie."""
        self.originals, self.root = originals, root
        self._java_options = java_options
        self.bookies: list[Bookie] = []

    @property
    def uri(self) -> str:
        """The metadata service URI, for configurations of either side."""
        return self.originals.uri(self.root)

    def add(self, *kinds: Kind, **settings: object) -> list[Bookie]:
        """Start bookies concurrently; return once all serve."""
        added = [
            Bookie(self.originals, kind, self.root, settings=settings, java_options=self._java_options)
            for kind in kinds
        ]
        self.bookies += added
        for wait in [bookie.launch() for bookie in added]:
            wait()
        return added

    def running(self, kind: Kind | None = None) -> list[Bookie]:
        """The running bookies, of one kind or of both."""
        return [bookie for bookie in self.bookies if bookie.is_running and kind in (None, bookie.kind)]

    def by_id(self, bookie_id: str) -> Bookie:
        """The bookie with this id."""
        return next(bookie for bookie in self.bookies if bookie.id == bookie_id)

    def stop(self) -> None:
        """Stop all running bookies; their directories stay."""
        running = self.running()
        for bookie in running:
            bookie.process.ask_to_stop()
        for bookie in running:
            bookie.stop()

    def start(self) -> None:
        """Start all bookies that do not run, on their directories as they are."""
        for wait in [bookie.launch() for bookie in self.bookies if not bookie.is_running]:
            wait()


def bookie_replies(port: int) -> bool:
    """Whether the bookie on a port replies to a request; an open port alone does not show that."""
    frames = FrameBuffer()
    try:
        with socket.create_connection((HOST, port), PROBE_TIMEOUT_S) as connection:
            connection.sendall(v3.encode_request(BookieInfoRequest(), transaction_id=1))
            while chunk := connection.recv(65536):
                data, found = frames.feed(chunk)
                for start, end in found:
                    # A bookie that demands authentication refuses the request.
                    return isinstance(
                        v3.decode_reply(data, start, end).reply, (BookieInfoReply, RefusedReply)
                    )
    except (OSError, WireError):
        pass  # not yet started, or it resets connections until the session of its predecessor has expired
    return False


def _four_letters(port: int, word: bytes) -> str:
    reply = b""
    try:
        with socket.create_connection((HOST, port), PROBE_TIMEOUT_S) as connection:
            connection.sendall(word)
            while chunk := connection.recv(65536):
                reply += chunk
    except OSError:
        pass  # not started yet
    return reply.decode("utf-8", "replace")


def _properties(settings: dict[str, object]) -> str:
    def escaped(value: str) -> str:
        # In a properties file a backslash escapes; in Apache's reader a comma makes a list.
        return value.replace("\\", "\\\\").replace(",", "\\,")

    return "".join(f"{key}={escaped(str(value))}\n" for key, value in settings.items())
