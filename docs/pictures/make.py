"""Makes the pictures of the pages: ``python docs/pictures/make.py`` writes one SVG for each function below.

Text only, one style, no library. ``tests/docs/test_pictures.py`` compares the files with what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent
INK, GREY, PAPER = "#24303a", "#6b7780", "#ffffff"
FILLS = {"plain": "#eef2f5", "ours": "#d8e8f5", "safe": "#d9efdc", "lost": "#f6dcd8", "wait": "#fbf0cf"}
STYLE = (
    f"text{{font:14px Helvetica,Arial,sans-serif;fill:{INK}}} .small{{font-size:12px;fill:{GREY}}} "
    f".bold{{font-weight:bold}} .mid{{text-anchor:middle}} "
    f"rect{{stroke:{INK};stroke-width:1}} .line{{stroke:{INK};stroke-width:1.4;fill:none}} "
    ".dash{stroke-dasharray:5 4}"
)


class Picture:
    """Shapes, from which one SVG text is made."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Writes words with their base line at ``y``; ``kind`` has the names of styles."""
        self._parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, lines: Sequence[str], fill: str = "plain"
    ) -> None:
        """A box with centred lines. The first is its name, the others are small."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{FILLS[fill]}"/>'
        )
        top = y + height / 2 - 8.5 * (len(lines) - 1) + 5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 17 * number, line, "mid" if number == 0 else "mid small")

    def frame(self, x: float, y: float, width: float, height: float, name: str) -> None:
        """A dashed frame around boxes, with its name in the upper left corner."""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="none" '
            'class="dash"/>'
        )
        self.text(x + 10, y + 19, name, "bold")

    def arrow(self, *points: tuple[float, float], label: str = "", dashed: bool = False) -> None:
        """A line through the points with a head at the last; the label stands at its middle."""
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        kind = "line dash" if dashed else "line"
        self._parts.append(f'<path d="{path}" class="{kind}" marker-end="url(#head)"/>')
        if label:
            (x1, y1), (x2, y2) = points[0], points[-1]
            if y1 == y2:
                self.text((x1 + x2) / 2, y1 - 6, label, "mid small")
            else:
                self.text(max(x1, x2) + 7, (y1 + y2) / 2 + 4, label, "small")

    def svg(self) -> str:
        """The picture as a document."""
        width, height = self._size
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" '
            f'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker>'
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<title>{escape(self._title)}</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{head}</defs>",
            f'<rect width="{width}" height="{height}" fill="{PAPER}" style="stroke:none"/>',
            *self._parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def record() -> Picture:
    """A record's way down to the disk, the acknowledgement's way up, and the way to a reader."""
    picture = Picture(
        860, 520, "A record's way: from append to the disk, back to the caller, and to a reader"
    )
    picture.frame(20, 20, 260, 480, "application's process")
    picture.frame(400, 20, 440, 480, "each bookie of the write quorum")
    picture.box(50, 55, 200, 48, ["LogWriter.append", "a place in a batch"], "ours")
    picture.box(50, 140, 200, 48, ["SegmentWriter", "a batch becomes one entry"], "ours")
    picture.box(50, 225, 200, 48, ["ledger writer", "id, LAC, digest; counts replies"], "ours")
    picture.box(50, 425, 200, 48, ["LogReader", "verified, in order, once"], "ours")
    picture.arrow((130, 103), (130, 140))
    picture.arrow((130, 188), (130, 225))
    picture.arrow((215, 225), (215, 188))
    picture.arrow((215, 140), (215, 103), label="DLSN")
    picture.box(430, 225, 180, 48, ["requests", "rights, fence, key"])
    picture.box(640, 225, 180, 48, ["write cache", "sorted by ledger"])
    picture.box(430, 330, 180, 48, ["journal", "one sync for a group"], "safe")
    picture.box(640, 330, 180, 48, ["entry log and index", "synced at a checkpoint"], "safe")
    picture.arrow((250, 240), (430, 240), label="add")
    picture.arrow((430, 260), (250, 260))
    picture.text(340, 278, "acknowledged", "mid small")
    picture.arrow((500, 273), (500, 330))
    picture.arrow((545, 330), (545, 273), label="synced")
    picture.arrow((610, 249), (640, 249))
    picture.arrow((730, 273), (730, 330), label="later")
    picture.box(430, 425, 180, 48, ["reads", "cache, then entry log"])
    picture.arrow((730, 378), (730, 449), (610, 449))
    picture.arrow((430, 449), (250, 449), label="up to the LAC")
    picture.text(430, 140, "The caller gets the DLSN when an ack quorum of bookies", "small")
    picture.text(430, 158, "has the entry synced. The journal makes it durable; the", "small")
    picture.text(430, 176, "entry log and the index make it easy to find.", "small")
    return picture


def quorum() -> Picture:
    """Ensemble, write quorum and ack quorum, with the LAC and a fence."""
    picture = Picture(
        860, 470, "E = 5, Qw = 3, Qa = 2: entries on bookies, the LAC, and the fence of a recovery"
    )
    picture.text(20, 34, "E = 5 bookies, each entry on Qw = 3 of them, acknowledged by Qa = 2", "bold")
    for bookie in range(5):
        picture.box(190 + bookie * 95, 52, 85, 30, [f"bookie {bookie + 1}"])
    for entry in range(5):
        y = 92 + entry * 44
        picture.text(20, y + 23, f"entry {entry}", "bold")
        for replica in range(3):
            bookie = (entry + replica) % 5
            late = (entry == 3 and replica == 2) or (entry == 4 and replica > 0)
            picture.box(
                190 + bookie * 95,
                y,
                85,
                36,
                ["on its way" if late else "synced"],
                "wait" if late else "safe",
            )
        picture.text(676, y + 23, "acknowledged" if entry < 4 else "one of two: not yet", "small")
    picture.arrow((100, 243), (175, 243))
    picture.text(20, 262, "LAC = 3", "small")
    picture.text(20, 340, "LAC", "bold")
    picture.text(
        80,
        340,
        "last add confirmed: every entry up to it has its ack quorum. Entries carry it; readers stop at it.",
    )
    fence = (
        "A new writer asks all bookies to refuse the old one. Of each Qw, Qw - Qa + 1 = 2 must agree:",
        "the old writer finds no ack quorum any more. The new one then reads on from the LAC, writes again",
        "what it finds, and closes the ledger. Entry 4 may stay or go: it was acknowledged to nobody.",
    )
    picture.text(20, 372, "Fence", "bold")
    for number, words in enumerate(fence):
        picture.text(80, 372 + 20 * number, words)
    picture.text(20, 446, "Bookies lost for good: up to Qa - 1 cost no acknowledged entry.", "small")
    return picture


def log() -> Picture:
    """A log is segments, a segment is a ledger, a ledger is entries, an entry is records."""
    picture = Picture(860, 440, "Log, segments, ledgers, entries, records")
    picture.text(20, 52, "log", "bold")
    picture.box(190, 30, 640, 36, ["orders"], "ours")
    picture.text(20, 132, "segments", "bold")
    picture.text(20, 150, "one after the other", "small")
    spans = (
        (190, 200, "segment 1", "completed"),
        (410, 200, "segment 2", "completed"),
        (630, 200, "segment 3", "in progress"),
    )
    for x, width, name, state in spans:
        picture.box(x, 110, width, 46, [name, state], "wait" if state == "in progress" else "plain")
        picture.arrow((x + width / 2, 66), (x + width / 2, 110))
    picture.text(20, 222, "ledgers", "bold")
    picture.text(20, 240, "one for each segment", "small")
    for (x, width, _, _), (ledger, state) in zip(
        spans, (("17", "closed"), ("23", "closed"), ("31", "open")), strict=True
    ):
        picture.box(x, 200, width, 46, [f"ledger {ledger}", f"{state}; replicas on bookies"])
        picture.arrow((x + width / 2, 156), (x + width / 2, 200))
    picture.text(20, 312, "entries", "bold")
    picture.text(20, 330, "one batch each", "small")
    for number in range(4):
        picture.box(410 + number * 106, 290, 96, 46, [f"entry {number}", "digest, LAC"], "safe")
    picture.arrow((510, 246), (510, 290))
    picture.text(20, 398, "records", "bold")
    for number in range(3):
        picture.box(410 + number * 142, 376, 132, 36, [f"DLSN(2, 1, {number})"], "ours")
    picture.arrow((564, 336), (564, 376))
    picture.text(190, 390, "DLSN: segment, entry,", "small")
    picture.text(190, 407, "slot in the entry", "small")
    return picture


def deployments() -> Picture:
    """The three deployments of one API."""
    picture = Picture(860, 420, "Three deployments: a directory, bookies of DLog, bookies of Apache")
    picture.frame(20, 20, 260, 380, "file:///path")
    picture.frame(300, 20, 260, 380, "distributedlog://zk1/shop")
    picture.frame(580, 20, 260, 380, "the same URI")
    picture.box(45, 60, 210, 200, [])
    picture.text(150, 84, "your process", "mid")
    picture.box(65, 100, 170, 40, ["dlog"], "ours")
    picture.box(65, 200, 170, 40, ["bookie"], "ours")
    picture.arrow((150, 140), (150, 200))
    picture.box(65, 320, 170, 50, ["one directory", "journal, logs, SQLite"], "safe")
    picture.arrow((210, 240), (210, 320))
    picture.text(45, 285, "other processes attach", "small")
    for x, names in ((325, ("bookie of DLog", "Python")), (605, ("bookie of Apache", "Java"))):
        picture.box(x, 60, 210, 80, [])
        picture.text(x + 105, 84, "your process", "mid")
        picture.box(x + 20, 94, 170, 36, ["dlog"], "ours")
        picture.box(x, 190, 100, 50, ["ZooKeeper", "metadata"])
        picture.arrow((x + 50, 140), (x + 50, 190))
        for number in range(3):
            picture.box(
                x + 20 + number * 16, 290 + number * 16, 158, 50, names if number == 2 else [], "safe"
            )
        picture.arrow((x + 155, 140), (x + 155, 290), label="entries")
    return picture


def survival() -> Picture:
    """What survives which event."""
    picture = Picture(860, 430, "What survives what")
    columns = ("a directory", "3 bookies, Qw 3, Qa 2")
    for number, name in enumerate(columns):
        picture.text(470 + number * 250, 40, name, "mid bold")
    rows = (
        ("the process is killed", ("everything acknowledged", "safe"), ("everything acknowledged", "safe")),
        (
            "the power fails, everywhere at once",
            ("everything acknowledged", "safe"),
            ("everything acknowledged", "safe"),
        ),
        (
            "one bookie, or its disk, is gone for good",
            ("it was the only copy", "lost"),
            ("everything acknowledged", "safe"),
        ),
        (
            "two of three disks are gone for good",
            ("it has one", "plain"),
            ("errors at lost entries, no gap", "lost"),
        ),
        ("a bit flips in a file", ("found; one copy only", "wait"), ("found; mended from a replica", "safe")),
        (
            "the disk is full",
            ("reads; appends are refused", "wait"),
            ("others write; it serves reads", "wait"),
        ),
        ("ZooKeeper is away", ("no ZooKeeper", "plain"), ("calls wait until it is back", "wait")),
        ("two writers at once", ("one writes, one is fenced", "safe"), ("one writes, one is fenced", "safe")),
    )
    for number, (event, *outcomes) in enumerate(rows):
        y = 56 + number * 45
        picture.text(20, y + 24, event)
        for column, (words, fill) in enumerate(outcomes):
            picture.box(350 + column * 250, y, 240, 37, [words], fill)
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "record.svg": record,
    "quorum.svg": quorum,
    "log.svg": log,
    "deployments.svg": deployments,
    "survival.svg": survival,
}

if __name__ == "__main__":
    for name, make in PICTURES.items():
        (FOLDER / name).write_text(make().svg(), "utf-8")
        sys.stdout.write(f"{name}\n")
