"""Apache's command lines and their output: the bookie shell (``BookieShell``) and ``bkctl``.

Inside: running a command to its end in a process of its own, and parsing the result from its log lines, which
differ in each release. Not inside: the expected results.
Always: output without the expected lines is an error, never an empty result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import attrs

from tests.interop.originals import Cluster, Originals

SHELL = "org.apache.bookkeeper.bookie.BookieShell"
BKCTL = "org.apache.bookkeeper.tools.cli.BKCtl"  # its jar is 4.17.3's; the commands are the release's own
EVERYTHING = ("-Dinterop.level=INFO",)  # the commands log their results and print nothing
TIMEOUT_S = 180
T = TypeVar("T")

_BOOKIE = re.compile(r"BookieID:(\S+), IP:")
_METADATA = re.compile(r"LedgerMetadata\{(.*)\}")
_ENSEMBLES = re.compile(r"ensembles=\{(.*?\])\}")
_ENSEMBLE = re.compile(r"(\d+)=\[([^\]]*)\]")
_SPACE = re.compile(r"BookieID:(\S+), IP:.*?[Ff]ree[:=] ?(\d+)\(.*?[Tt]otal[:=] ?(\d+)\(")
_TOTALS = (
    re.compile(r"Total free disk space in the cluster\D*(\d+)\("),
    re.compile(r"Total disk capacity in the cluster\D*(\d+)\("),
)
_HEX = re.compile(r"^[0-9A-F]{8} ((?:[0-9A-F]{2} ){1,16})", re.MULTILINE)
# 4.17.3 first, then 4.18.0.
_READ_ENTRY = (
    re.compile(r"ReadLedgerCommand -+ Lid=(?P<ledger>-?\d+), Eid=(?P<entry>-?\d+), EntrySize=(?P<size>\d+) "),
    re.compile(
        r"ReadLedgerCommand Entry \{entryId=(?P<entry>-?\d+), entrySize=(?P<size>\d+),"
        r" ledgerId=(?P<ledger>-?\d+)"
    ),
)
_RECORD = (
    re.compile(
        r"Lid=(?P<ledger>-?\d+), Eid=(?P<entry>-?\d+), ByteOffset=(?P<offset>\d+), EntrySize=(?P<size>\d+) "
    ),
    re.compile(
        r"Entry \{entryId=(?P<entry>-?\d+), entrySize=(?P<size>\d+),"
        r" ledgerId=(?P<ledger>-?\d+), position=(?P<offset>\d+)"
    ),
)
_LAC = re.compile(r"LastConfirmed: +(-?\d+)|lastAddConfirmed=(-?\d+)")
_KEY = re.compile(r"MasterKey: +([0-9a-f]+)|masterKey=([0-9a-f]+)")
_LEDGER_BYTES = re.compile(
    r"Lid=(\d+), TotalSizeOfEntriesOfLedger=(\d+)|Size of ledger's entries \{ledgerId=(\d+), size=(\d+)\}"
)
_MARK = re.compile(r"LastLogMark : Journal Id - (\d+)\([0-9a-f]+\.txn\), Pos - (\d+)")


@attrs.frozen
class Tools:
    """The command lines of a release, on a cluster."""

    originals: Originals
    cluster: Cluster

    def shell(self, *arguments: str, until: str = "") -> str:
        """Run a command of the bookie shell; return its output."""
        return self._run(SHELL, ("-conf", str(self.cluster.bookies[0].config), *arguments), until)

    def bkctl(self, *arguments: str, until: str = "") -> str:
        """Run a command of bkctl; return its output."""
        options = ("-c", str(self.cluster.bookies[0].config), "-u", self.cluster.uri)
        return self._run(BKCTL, (*options, *arguments), until)

    def both(self, shell: Sequence[str], bkctl: Sequence[str], *, until: str = "") -> list[str]:
        """Run a command of each concurrently; return both outputs."""
        return at_once(lambda: self.shell(*shell, until=until), lambda: self.bkctl(*bkctl, until=until))

    def _run(self, main_class: str, arguments: Sequence[str], until: str) -> str:
        command = self.originals.java(main_class, *arguments, options=EVERYTHING)
        process = self.originals.processes.start(self.originals.fresh("shell"), command)

        def output() -> str:
            return process.log.read_text("utf-8", "replace")

        try:
            if until:  # some commands take long to end after their last line
                process.wait_ready(lambda: until in output(), timeout_s=TIMEOUT_S)
            else:
                code = process.wait_ended(timeout_s=TIMEOUT_S)
                assert code == 0, f"{arguments}: exit code {code}\n{output()[-3000:]}"
        finally:
            process.stop(grace_s=0)
        return output()


def at_once(*commands: Callable[[], T]) -> list[T]:
    """Run several commands concurrently; return their results in order."""
    with ThreadPoolExecutor(len(commands)) as threads:
        return [future.result() for future in [threads.submit(command) for command in commands]]


def bookies_listed(output: str) -> set[str]:
    """The ids in the output of ``listbookies``."""
    found = set(_BOOKIE.findall(output))
    assert found or "No bookie exists" in output, output[-3000:]
    return found


@attrs.frozen
class ShownMetadata:
    """A ledger's metadata in the output of ``ledgermetadata``."""

    fields: dict[str, str]
    ensembles: dict[int, list[str]]


def shown_metadata(output: str) -> ShownMetadata:
    """Parse the output of ``ledgermetadata``."""
    text = _only(_METADATA.findall(output), output)
    ensembles = _only(_ENSEMBLES.findall(text), output)
    return ShownMetadata(
        dict(re.findall(r"(\w+)=([^,{}\[\]]+)(?=[,}]|$)", text.replace(ensembles, ""))),
        {int(first): bookies.split(", ") for first, bookies in _ENSEMBLE.findall(ensembles)},
    )


@attrs.frozen
class ShownRecord:
    """An entry of a ledger, or a record of a file, as Java's tools show it."""

    ledger_id: int
    entry_id: int
    size_bytes: int  # for an entry of a ledger: the length of the ledger up to it
    offset: int | None  # in a file
    lac: int | None
    key: str | None
    is_fence: bool
    data: bytes  # of an entry of a file: the bytes after its header of 32 bytes


def shown_entries(output: str) -> list[ShownRecord]:
    """Parse the output of ``-entryformat hex readledger -msg``."""
    return _records(output, _READ_ENTRY)


def shown_records(output: str) -> list[ShownRecord]:
    """Parse ``-entryformat hex readlog -msg``, or bkctl's ``bookie readjournal -e hex -m``."""
    return _records(output, _RECORD)


def shown_ledger_bytes(output: str) -> dict[int, int]:
    """Parse the output of ``readlogmetadata``."""
    found = _LEDGER_BYTES.findall(output)
    assert found, output[-3000:]
    return {int(old or new): int(old_size or new_size) for old, old_size, new, new_size in found}


def shown_mark(output: str) -> tuple[int, int]:
    """Parse the output of ``lastmark``: journal id and offset."""
    journal_id, offset = _only(_MARK.findall(output), output)
    return int(journal_id), int(offset)


def shown_space(output: str) -> dict[str, tuple[int, int]]:
    """Parse the output of ``bookieinfo``: free and total bytes of each bookie."""
    found = {bookie: (int(free), int(total)) for bookie, free, total in _SPACE.findall(output)}
    assert found, output[-3000:]
    assert [sum(column) for column in zip(*found.values(), strict=True)] == [
        int(_only(pattern.findall(output), output)) for pattern in _TOTALS
    ]
    return found


def _records(output: str, patterns: Sequence[re.Pattern[str]]) -> list[ShownRecord]:
    pattern = next((each for each in patterns if each.search(output)), None)
    assert pattern is not None, output[-3000:]
    matches = list(pattern.finditer(output))
    stops = [match.start() for match in matches[1:]] + [len(output)]
    records = []
    for match, stop in zip(matches, stops, strict=True):
        rest = output[match.end() : stop]
        lac, key = _LAC.search(rest), _KEY.search(rest)
        named = match.groupdict()
        records.append(
            ShownRecord(
                ledger_id=int(named["ledger"]),
                entry_id=int(named["entry"]),
                size_bytes=int(named["size"]),
                offset=int(named["offset"]) if "offset" in named else None,
                lac=int(lac[1] or lac[2]) if lac else None,
                key=(key[1] or key[2]) if key else None,
                is_fence="Fenced" in rest,
                data=bytes.fromhex("".join(_HEX.findall(rest))),
            )
        )
    return records


def _only(found: Sequence[T], output: str) -> T:
    assert len(found) == 1, f"{found}:\n{output[-3000:]}"
    return found[0]
