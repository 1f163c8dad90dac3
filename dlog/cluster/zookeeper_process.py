"""A real ZooKeeper server as a process of this machine, for tests and small clusters.

Inside: finding Java and ZooKeeper's jars, the command line, starting a server on 127.0.0.1, checking that it
replies. Not inside: one process (``process``), the record of a cluster (``layout``), clients.
Always: a server is ready when it replies and reports this data directory. An open port alone proves nothing.

Source: ZooKeeper administrator's guide (four letter words, system properties).
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import socket
from collections.abc import Mapping, Sequence
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
REPLY_TIMEOUT_S = 2.0
HEAP_MIB = 128
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
QUORUM_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"  # also for one member alone
DEBIAN_JARS = Path("/usr/share/java")
JARS_VARIABLE = "DLOG_ZOOKEEPER_JARS"  # a directory of jars, instead of the two places that are searched

# snappy-java is necessary: without it the server's thread dies while its port stays open.
_NEEDED_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
_LOGGING_JARS = ("log4j-slf4j2-impl", "log4j-api", "log4j-core")
_TLS_JARS = (
    "netty-buffer",
    "netty-codec",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
)


class ZookeeperProcessError(Exception):
    """A ZooKeeper server could not be started or stopped; the message has the end of its log."""


class ZookeeperNotInstalledError(ZookeeperProcessError):
    """Java or ZooKeeper is missing; the message names the packages to install."""


class ZookeeperPortError(ZookeeperProcessError):
    """Another program listens on the port."""


@attrs.frozen
class ZookeeperProcess:
    """A running server."""

    hosts: str  # connect string
    port: int
    identity: ProcessId

    @property
    def pid(self) -> int:
        """The pid of the server."""
        return self.identity.pid


def find_java() -> Path:
    """The java program of JAVA_HOME, else the one on the PATH.

    Raises:
        ZookeeperNotInstalledError: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home, "bin"))) if home else None
    found = found or shutil.which("java")
    if found is None:
        raise ZookeeperNotInstalledError(
            "Java is neither in JAVA_HOME nor on the PATH; install Java 17 (Debian: openjdk-17-jre-headless)"
        )
    return Path(found)


def find_class_path(jars: Path | None = None) -> list[Path]:
    """ZooKeeper's jars.

    They come from the given directory, else from that in ``DLOG_ZOOKEEPER_JARS``, else from an installed
    PySpark, else from Debian's package.

    Raises:
        ZookeeperNotInstalledError: There are none, or a given directory lacks some.
    """
    chosen = jars or (Path(setting) if (setting := os.environ.get(JARS_VARIABLE)) else None)
    if chosen is not None:
        missing = [name for name in _NEEDED_JARS if _find_jar(chosen, name) is None]
        if missing:
            raise ZookeeperNotInstalledError(
                f"{chosen} has no jar of {', '.join(missing)}; name a directory with all of"
                f" {', '.join(_NEEDED_JARS)}, such as the lib of a ZooKeeper distribution"
            )
    for directory in [chosen] if chosen is not None else _jar_directories():
        needed = [_find_jar(directory, name) for name in _NEEDED_JARS]
        if all(needed):
            logging_jars = [_find_jar(directory, name) for name in _LOGGING_JARS]
            tls_jars = [_find_jar(directory, name) for name in _TLS_JARS]
            return [jar for jar in needed + (logging_jars if all(logging_jars) else []) + tls_jars if jar]
    raise ZookeeperNotInstalledError(
        f"ZooKeeper's jars are neither in an installed pyspark nor in {DEBIAN_JARS}; install one of them"
        f" (pip: pyspark; Debian: libzookeeper-java), or name their directory in {JARS_VARIABLE}"
    )


def prepare(
    data_dir: Path,
    port: int,
    jars: Path | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
) -> list[str]:
    """Write a server's configuration into its data directory; return the command that runs the server.

    Args:
        settings: More lines of ``zoo.cfg``, such as those of TLS.
        java_options: More options of Java, such as the file with the users of SASL.

    Raises:
        ZookeeperNotInstalledError: Java or ZooKeeper's jars are missing.
    """
    java, class_path = find_java(), find_class_path(jars)
    data_dir = data_dir.absolute()
    data_dir.mkdir(parents=True, exist_ok=True)
    config = {
        # In a Java properties file a backslash is the only special character of a path.
        "dataDir": str(data_dir).replace("\\", "\\\\"),
        "clientPort": str(port),
        "clientPortAddress": HOST,
        "tickTime": "500",  # milliseconds; the granularity of session timeouts
        "minSessionTimeout": "1000",
        "maxSessionTimeout": "60000",
        "maxClientCnxns": "0",
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "srvr,ruok,conf,mntr,stat,wchs",
        "autopurge.purgeInterval": "24",
        **(settings or {}),
    }
    path = data_dir / "zoo.cfg"
    path.write_text("".join(f"{key}={value}\n" for key, value in config.items()), "utf-8")
    # A server of a test or of a laptop: it starts quickly and is small.
    options = ["-XX:TieredStopAtLevel=1", "-Dzookeeper.preAllocSize=4096", *java_options]  # KiB
    return _java_command(MAIN_CLASS, path, class_path, java=java, heap_mib=HEAP_MIB, options=options)


def member_command(config: Path, *, jars: Path | None = None, heap_mib: int) -> list[str]:
    """The command that runs the server of a ``zoo.cfg``, alone or as one of several members.

    Args:
        jars: See ``find_class_path``.

    Raises:
        ZookeeperNotInstalledError: Java or ZooKeeper's jars are missing.
    """
    class_path = find_class_path(jars)
    return _java_command(
        QUORUM_MAIN_CLASS, config, class_path, java=find_java(), heap_mib=heap_mib, options=()
    )


def _java_command(
    main_class: str,
    config: Path,
    class_path: Sequence[Path],
    *,
    java: Path,
    heap_mib: int,
    options: Sequence[str],
) -> list[str]:
    return [
        str(java),
        f"-Xmx{heap_mib}m",
        "-XX:+UseSerialGC",
        "-Dorg.apache.logging.log4j.level=INFO",
        *options,
        "-cp",
        os.pathsep.join(map(str, class_path)),
        main_class,
        str(config),
    ]


async def start_zookeeper(
    data_dir: Path,
    *,
    port: int | None = None,
    log_path: Path | None = None,
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
) -> ZookeeperProcess:
    """Start a server that outlives this process; return when it replies to requests.

    If cancelled or failing, the call kills the server.

    Args:
        data_dir: The directory for data and configuration; created if missing. The server serves the data
            in it.
        port: The port on 127.0.0.1; None takes a free one.
        log_path: The file to which the server's output is appended; None takes ``zookeeper.log`` in the
            data directory.
        settings: see ``prepare``.
        java_options: see ``prepare``.

    Raises:
        ZookeeperNotInstalledError: Java or ZooKeeper's jars are missing.
        ZookeeperPortError: The port is in use.
        ZookeeperProcessError: The server ended or did not reply in time; the message has the end of its log.
    """
    log_path = log_path or data_dir / "zookeeper.log"
    for tries_left in reversed(range(PORT_TRIES)):
        chosen = free_ports(1, random.Random(), host=HOST)[0] if port is None else port
        await _wait_free(chosen)
        identity = start_detached(
            prepare(data_dir, chosen, settings=settings, java_options=java_options), log_path
        )
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
        # Another program may have taken the port since the check. Only then does another try help.
        if not (ended and port is None and tries_left and not _is_free(chosen)):
            failure = "ended at once" if ended else f"did not reply within {READY_TIMEOUT_S:g} s"
            raise ZookeeperProcessError(
                f"ZooKeeper on port {chosen} {failure}; the end of {log_path}:\n{_tail(log_path)}"
            )
    raise AssertionError("the last try returns or raises")


async def stop_zookeeper(identity: ProcessId) -> None:
    """Stop a server with SIGTERM, then SIGKILL; do nothing if it has ended already."""
    await stop(identity, grace_s=STOP_GRACE_S)


async def is_serving(port: int, data_dir: Path) -> bool:
    """True if the server of this data directory replies to requests on the port.

    False for a server that is starting, for one that has its port open but does not serve, and for the
    server of another directory.
    """
    if "Mode:" not in await _send_word(port, b"srvr"):
        return False
    return _is_data_dir(await _send_word(port, b"conf"), data_dir)


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


def _is_data_dir(reply: str, data_dir: Path) -> bool:
    for line in reply.splitlines():
        key, _, value = line.partition("=")
        if key == "dataDir":
            served = Path(value).parent  # below it, a directory for the format's version
            return served.exists() and served.samefile(data_dir)
    return False


async def _send_word(port: int, word: bytes) -> str:
    reply = b""
    with trio.move_on_after(REPLY_TIMEOUT_S):
        try:
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await stream.send_all(word)
                async for chunk in stream:
                    reply += chunk
        except (OSError, trio.BrokenResourceError):
            pass  # the server is not up yet, or has ended
    return reply.decode("utf-8", "replace")


async def _wait_free(port: int) -> None:
    # A killed server keeps its port until its last thread has ended.
    deadline = trio.current_time() + PORT_FREE_TIMEOUT_S
    while not _is_free(port):
        if trio.current_time() > deadline:
            raise ZookeeperPortError(f"port {port} of {HOST} is in use; choose another port")
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
