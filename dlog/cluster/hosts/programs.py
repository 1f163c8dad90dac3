"""The files of one host, and the commands that start, stop and show its programs, as values.

::

    DIRECTORY/bk_server.conf   journal/ ledgers/    the bookie, unless other directories are given
              zoo.cfg          zookeeper/           ZooKeeper
              http.token                            the token of the bookie's HTTP server
              daemons/                              `dlog daemon`: state and output

Inside: paths, texts, command lines. Not inside: running them (``channel``), their order (``hosted_cluster``).
Always: the members of a ZooKeeper that has data do not change by an edited hosts file, because members
without the data could then elect a leader that has none. A file that an operator edited is kept beside the
new one. No command deletes anything.

Source: ZooKeeper administrator's guide (cluster options, myid); BookKeeper, bk_server.conf.
"""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

import attrs

from dlog.cluster.hosts.hosts_file import Host, HostsFile

ZOOKEEPER, BOOKIE, AUTORECOVERY = "zookeeper", "bookie", "autorecovery"
TOKEN_BYTES = 24

# $1: the path. $1.new has the new text. A reader sees the old text or the new one, never a half. The former
# one stays, and its path is printed.
_REPLACE = """
if [ -e "$1" ] && ! cmp -s "$1" "$1.new"; then
    number=1
    while [ -e "$1.previous-$number" ]; do number=$((number + 1)); done
    cp -p "$1" "$1.previous-$number"
    echo "$1.previous-$number"
fi
mv "$1.new" "$1"
"""

# $1: the path. The text comes from stdin.
_WRITE = f"""set -e
umask 077
mkdir -p "$(dirname "$1")"
cat > "$1.new"
{_REPLACE}"""

# $1: zoo.cfg. $2: the data directory. $3: the member's id. $4: the members, one a line.
_WRITE_ZOOKEEPER = f"""set -e
umask 077
mkdir -p "$(dirname "$1")"
cat > "$1.new"
if [ -d "$2/version-2" ] && [ -e "$1" ] && [ "$(grep '^server\\.' "$1" || true)" != "$4" ]; then
    echo "the members of a ZooKeeper with data cannot change by the hosts file: members without the data"\\
        "could elect a leader without it. Restore the zookeeper keys, or change the members as ZooKeeper's"\\
        "guide says and then edit $1 on each host" >&2
    exit 1
fi
if [ -e "$2/myid" ] && [ "$(cat "$2/myid")" != "$3" ]; then
    echo "$2 is the directory of the member $(cat "$2/myid"), not $3; restore the key zookeeper" >&2
    exit 1
fi
mkdir -p "$2"
[ -e "$2/myid" ] || printf '%s' "$3" > "$2/myid"
{_REPLACE}"""

# $1: the path.
_MAKE_TOKEN = f"""set -e
umask 077
if [ ! -s "$1" ]; then
    head -c {TOKEN_BYTES} /dev/urandom | od -An -v -tx1 | tr -d ' \\n' > "$1.new"
    mv "$1.new" "$1"
fi
cat "$1"
"""


@attrs.frozen
class Command:
    """A command for a host, and the text for its stdin."""

    words: tuple[str, ...]
    stdin: str = attrs.field(default="", repr=False)

    @property
    def shown(self) -> str:
        """The command for a message, as it would be typed; a script of several lines is left out."""
        return shlex.join(word if "\n" not in word else "..." for word in self.words)


@attrs.frozen
class HostPaths:
    """The paths of one host's files."""

    host: Host

    @property
    def bookie_config(self) -> PurePosixPath:
        return self.host.directory / "bk_server.conf"

    @property
    def zookeeper_config(self) -> PurePosixPath:
        return self.host.directory / "zoo.cfg"

    @property
    def zookeeper_data(self) -> PurePosixPath:
        return self.host.zookeeper_directory or self.host.directory / "zookeeper"

    @property
    def token(self) -> PurePosixPath:
        return self.host.directory / "http.token"

    @property
    def daemons(self) -> PurePosixPath:
        return self.host.directory / "daemons"

    @property
    def journals(self) -> tuple[PurePosixPath, ...]:
        return self.host.journal_directories or (self.host.directory / "journal",)

    @property
    def ledgers(self) -> tuple[PurePosixPath, ...]:
        return self.host.ledger_directories or (self.host.directory / "ledgers",)


def programs_of(host: Host) -> tuple[str, ...]:
    """The programs of a host, in the order in which they start."""
    has = {ZOOKEEPER: host.zookeeper is not None, BOOKIE: host.bookie, AUTORECOVERY: host.autorecovery}
    return tuple(name for name, is_here in has.items() if is_here)


def bookie_config_text(file: HostsFile, host: Host) -> str:
    """The text of the host's ``bk_server.conf``."""
    paths = HostPaths(host)
    settings: dict[str, str] = {
        "ledgerStorageClass": "DbLedgerStorage",
        **file.bookie,
        **host.bookie_settings,
    }
    settings |= {
        "bookiePort": str(host.bookie_port),
        "advertisedAddress": host.address,
        "metadataServiceUri": str(file.service),
        "journalDirectories": ",".join(map(_escaped, paths.journals)),
        "ledgerDirectories": ",".join(map(_escaped, paths.ledgers)),
    }
    if host.http_port is not None:
        settings |= {
            "httpServerEnabled": "true",
            "httpServerPort": str(host.http_port),
            "httpServerHost": host.http_host,
            "httpServerTokenPath": _escaped(paths.token),
            "httpPageNamespace": file.uri,
        }
    return _text(f"bookie of {host.name}", settings)


def zookeeper_config_text(file: HostsFile, host: Host) -> str:
    """The text of the host's ``zoo.cfg``. One member alone has no line for members."""
    settings = {
        "tickTime": "2000",
        "initLimit": "10",
        "syncLimit": "5",
        "admin.enableServer": "false",
        "autopurge.purgeInterval": "24",
        "4lw.commands.whitelist": "srvr,ruok,conf,mntr",
        **file.zookeeper,
        "dataDir": str(HostPaths(host).zookeeper_data).replace("\\", "\\\\"),
        "clientPort": str(host.zookeeper_port),
        "clientPortAddress": host.address,
    }
    return _text(f"ZooKeeper of {host.name}", settings) + "".join(f"{line}\n" for line in member_lines(file))


def member_lines(file: HostsFile) -> list[str]:
    """The lines of ``zoo.cfg`` that name the members, in the order of their ids."""
    members = file.members
    if len(members) < 2:
        return []
    return [
        f"server.{one.zookeeper}={one.address}:{one.zookeeper_peer_port}:{one.zookeeper_election_port}"
        for one in members
    ]


def check_dlog(host: Host) -> Command:
    """Prints the version of `dlog` on the host."""
    return _dlog(host, "--version")


def write_bookie_files(file: HostsFile, host: Host) -> Command:
    """Writes the configuration; prints the path of the former one if that was another."""
    path = HostPaths(host).bookie_config
    return Command(("sh", "-c", _WRITE, "sh", str(path)), bookie_config_text(file, host))


def make_bookie_directories(host: Host) -> Command:
    """Creates the directories of the bookie that are missing. Existing ones stay as they are."""
    paths = HostPaths(host)
    return Command(("mkdir", "-p", *map(str, (*paths.journals, *paths.ledgers))))


def write_zookeeper_files(file: HostsFile, host: Host) -> Command:
    """Writes configuration and ``myid``; fails if the data belong to another member or set of members."""
    paths = HostPaths(host)
    arguments = (str(paths.zookeeper_config), str(paths.zookeeper_data), str(host.zookeeper))
    return Command(
        (
            "sh",
            "-c",
            _WRITE_ZOOKEEPER,
            "sh",
            *arguments,
            "\n".join(member_lines(file)),
        ),
        zookeeper_config_text(file, host),
    )


def make_token(host: Host) -> Command:
    """Prints the token of the HTTP server; makes one if there is none."""
    return Command(("sh", "-c", _MAKE_TOKEN, "sh", str(HostPaths(host).token)))


def start_program(file: HostsFile, host: Host, program: str, *, timeout_s: float) -> Command:
    """Starts one program in the background; ends when it serves."""
    paths = HostPaths(host)
    arguments: dict[str, list[str]] = {
        ZOOKEEPER: [
            "--config",
            str(paths.zookeeper_config),
            "--heap",
            str(host.zookeeper_heap_mib),
            *([] if host.zookeeper_jars is None else ["--jars", str(host.zookeeper_jars)]),
        ],
        BOOKIE: ["--config", str(paths.bookie_config)],
        AUTORECOVERY: ["--service", str(file.service), "--id", host.name, *_recovery_http(host)],
    }
    options = ["--directory", str(paths.daemons), "--timeout", f"{timeout_s:g}", "--json"]
    return _dlog(host, "daemon", "start", *options, program, *arguments[program])


def _recovery_http(host: Host) -> list[str]:
    port = host.recovery_http_port
    return [] if port is None else ["--http-port", str(port), "--http-host", host.http_host]


def stop_program(host: Host, program: str, *, grace_s: float) -> Command:
    """Stops one program; ends when it has ended."""
    daemons = str(HostPaths(host).daemons)
    return _dlog(host, "daemon", "stop", program, "--directory", daemons, "--grace", f"{grace_s:g}")


def show_programs(host: Host) -> Command:
    """Prints the programs that were started and not stopped, as JSON."""
    return _dlog(host, "daemon", "status", "--json", "--directory", str(HostPaths(host).daemons))


def create_metadata(file: HostsFile, host: Host) -> Command:
    """Creates the cluster's metadata; exit code 4 if they exist."""
    return _dlog(host, "bookies", "init", str(file.service))


def bind_namespace(file: HostsFile, host: Host) -> Command:
    """Binds the namespace to the ledgers, unless it is bound."""
    uri = f"{file.uri}?create=true&ledgers_root={file.service.ledgers_root}"
    return _dlog(host, "log", "list", "--uri", uri)


def list_bookies(file: HostsFile, host: Host) -> Command:
    """Prints the registered bookies and those that are away, as JSON."""
    return _dlog(host, "bookies", "list", "--json", "--service", str(file.service))


def _dlog(host: Host, *arguments: str) -> Command:
    environment = [f"{name}={value}" for name, value in host.environment.items()]
    return Command((*(["env", *environment] if environment else []), *host.dlog, *arguments))


def _escaped(path: PurePosixPath) -> str:
    # In a properties file a backslash starts an escape, and a comma ends a value of a list.
    return str(path).replace("\\", "\\\\").replace(",", "\\,")


def _text(title: str, settings: dict[str, str]) -> str:
    head = f"# {title}, written by `dlog cluster start --hosts`: edit the hosts file, not this one\n"
    return head + "".join(f"{key}={value}\n" for key, value in settings.items())
