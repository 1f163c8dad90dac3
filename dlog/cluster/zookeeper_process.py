"""A real ZooKeeper as a child process of this machine, for tests and small clusters.

Inside: finding Java and ZooKeeper's jars, its command line, starting a server bound to 127.0.0.1, knowing
when it answers. Not inside: processes as such (``process``), what a cluster records about them, clients.
Always: a server is ready when it answers and is the one with this data directory; an open port proves
nothing.

Source: ZooKeeper administrator's guide (four letter words, system properties).
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from dlog.cluster.ports import free_ports
from dlog.cluster.process import ProcessId, is_alive, start_detached, stop

HOST = "127.0.0.1"
READY_TIMEOUT_S = 60.0
STOP_GRACE_S = 10.0
PORT_TRIES = 5
PORT_FREE_TIMEOUT_S = 3.0
POLL_S = 0.05
ANSWER_TIMEOUT_S = 2.0
HEAP_MIB = 128
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
DEBIAN_JARS = Path("/usr/share/java")

# snappy-java is not optional: without it the server's thread dies, yet its port stays open.
_NEEDED_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
_LOGGING_JARS = ("log4j-slf4j2-impl", "log4j-api", "log4j-core")


class ZookeeperProcessError(Exception):
    """A ZooKeeper server could not be started or stopped; the message has its last words."""


class ZookeeperNotInstalledError(ZookeeperProcessError):
    """Java or ZooKeeper is missing; the message names the packages to install."""


class ZookeeperPortError(ZookeeperProcessError):
    """Something else listens on the port."""


@attrs.frozen
class ZookeeperProcess:
    """A running server."""

    hosts: str  # connect string
    port: int
    identity: ProcessId

    @property
    def pid(self) -> int:
        """Of the server's process."""
        return self.identity.pid


def find_java() -> Path:
    """The java program: of JAVA_HOME, or on the PATH.

    Raises:
        ZookeeperNotInstalledError
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise ZookeeperNotInstalledError(
            "Java not found on the PATH nor in JAVA_HOME; install it (Debian: openjdk-17-jre-headless)"
        )
    return Path(found)


def find_class_path() -> list[Path]:
    """ZooKeeper's jars: those an installed PySpark brings, or Debian's.

    Raises:
        ZookeeperNotInstalledError
    """
    for directory in _jar_directories():
        needed = [_find_jar(directory, name) for name in _NEEDED_JARS]
        if all(needed):
            logging_jars = [_find_jar(directory, name) for name in _LOGGING_JARS]
            return [jar for jar in needed + (logging_jars if all(logging_jars) else []) if jar]
    raise ZookeeperNotInstalledError(
        "ZooKeeper's jars not found in an installed pyspark nor in "
        f"{DEBIAN_JARS}; install one of them (pip: pyspark; Debian: libzookeeper-java)"
    )


def prepare(data_dir: Path, port: int) -> list[str]:
    """Write a server's configuration into its data directory; return the command that runs it.

    Raises:
        ZookeeperNotInstalledError
    """
    java, class_path = find_java(), find_class_path()
    data_dir = data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    config = {
        # Backslashes would be escapes in a Java properties file, and nothing else of a path would.
        "dataDir": str(data_dir).replace("\\", "\\\\"),
        "clientPort": str(port),
        "clientPortAddress": HOST,
        "tickTime": "500",  # how finely sessions expire
        "minSessionTimeout": "1000",
        "maxSessionTimeout": "60000",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr,ruok,conf,mntr,stat,wchs",
        "autopurge.purgeInterval": "24",
    }
    path = data_dir / "zoo.cfg"
    path.write_text("".join(f"{key}={value}\n" for key, value in config.items()), "utf-8")
    return [
        str(java),
        f"-Xmx{HEAP_MIB}m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dzookeeper.preAllocSize=4096",  # KiB; 64 MiB for each log file otherwise
        "-Dorg.apache.logging.log4j.level=INFO",
        "-cp",
        os.pathsep.join(map(str, class_path)),
        MAIN_CLASS,
        str(path),
    ]


async def start_zookeeper(
    data_dir: Path, *, port: int | None = None, log_path: Path | None = None
) -> ZookeeperProcess:
    """Start a server that outlives this process; return once it answers requests.

    If cancelled or failed, the server is killed again.

    Args:
        data_dir: Holds its data and its configuration; made if missing. What is there is served.
        port: On 127.0.0.1; a free one is chosen if None.
        log_path: What the server prints is appended; ``zookeeper.log`` in the data directory if None.

    Raises:
        ZookeeperNotInstalledError, ZookeeperPortError
        ZookeeperProcessError: It ended or did not answer in time; the message has the end of its log.
    """
    log_path = log_path or data_dir / "zookeeper.log"
    for tries_left in reversed(range(PORT_TRIES)):
        chosen = free_ports(1, random.Random(), host=HOST)[0] if port is None else port
        await _wait_free(chosen)
        identity = start_detached(prepare(data_dir, chosen), log_path)
        serving = False
        try:
            with trio.move_on_after(READY_TIMEOUT_S):
                while is_alive(identity):
                    if serving := await is_serving(chosen, data_dir):
                        break
                    await trio.sleep(POLL_S)
            if serving:
                return ZookeeperProcess(f"{HOST}:{chosen}", chosen, identity)
            ended = not is_alive(identity)
        finally:
            if not serving:
                with trio.CancelScope(shield=True):
                    await stop(identity, grace_s=0)
        # A port free a moment ago may be taken now: only then is another try worth it.
        if not (ended and port is None and tries_left and not _is_free(chosen)):
            what = "ended at once" if ended else f"did not answer within {READY_TIMEOUT_S:g} s"
            raise ZookeeperProcessError(
                f"ZooKeeper on port {chosen} {what}; the end of {log_path}:\n{_tail(log_path)}"
            )
    raise AssertionError("the last try returns or raises")


async def stop_zookeeper(identity: ProcessId) -> None:
    """Stop a server, gently at first; one that has ended already is fine."""
    await stop(identity, grace_s=STOP_GRACE_S)


async def is_serving(port: int, data_dir: Path) -> bool:
    """Whether the server of the data directory answers requests on the port: neither a server still
    starting, nor one that has lost its mind but not its port, nor another's.
    """
    if "Mode:" not in await _ask(port, b"srvr"):
        return False
    return _is_data_dir(await _ask(port, b"conf"), data_dir)


@asynccontextmanager
async def open_zookeeper_process(
    data_dir: Path, *, port: int | None = None, log_path: Path | None = None
) -> AsyncIterator[ZookeeperProcess]:
    """Start a server as ``start_zookeeper`` does; leaving the block stops it."""
    server = await start_zookeeper(data_dir, port=port, log_path=log_path)
    try:
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await stop_zookeeper(server.identity)


def _jar_directories() -> list[Path]:
    directories = []
    if home := os.environ.get("SPARK_HOME"):
        directories.append(Path(home, "jars"))
    spec = importlib.util.find_spec("pyspark")
    if spec is not None and spec.origin is not None:
        directories.append(Path(spec.origin).parent / "jars")
    return [*directories, DEBIAN_JARS]


def _find_jar(directory: Path, name: str) -> Path | None:
    """``name.jar`` or ``name-<version>.jar``."""
    plain = directory / f"{name}.jar"
    return plain if plain.exists() else next(iter(sorted(directory.glob(f"{name}-[0-9]*.jar"))), None)


def _is_data_dir(answer: str, data_dir: Path) -> bool:
    for line in answer.splitlines():
        key, _, value = line.partition("=")
        if key == "dataDir":
            served = Path(value).parent  # below it, a directory for the format's version
            return served.exists() and served.samefile(data_dir)
    return False


async def _ask(port: int, word: bytes) -> str:
    answer = b""
    with trio.move_on_after(ANSWER_TIMEOUT_S):
        try:
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await stream.send_all(word)
                async for chunk in stream:
                    answer += chunk
        except (OSError, trio.BrokenResourceError):
            pass  # not there yet, or gone again
    return answer.decode("utf-8", "replace")


async def _wait_free(port: int) -> None:
    # A server killed a moment ago lets go of its port only with the last of its threads.
    deadline = trio.current_time() + PORT_FREE_TIMEOUT_S
    while not _is_free(port):
        if trio.current_time() > deadline:
            raise ZookeeperPortError(f"port {port} of {HOST} is in use; choose another")
        await trio.sleep(POLL_S)


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    return True


def _tail(path: Path, size_bytes: int = 2000) -> str:
    try:
        return path.read_bytes()[-size_bytes:].decode("utf-8", "replace").strip() or "(empty)"
    except OSError as exc:
        return f"({exc})"
