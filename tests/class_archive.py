"""Archives of Java's classes: with one, a JVM of the tests starts in about half of the time.

Inside: making an archive once, in a cache outside the repository, and the options that use it. Not inside:
what a JVM does to load the classes (``interop.Training``; for Spark ``train_spark``).
Always: an archive under its final name is complete. A JVM checks it against its jars, and starts without it
if it does not fit. What cannot be made costs only time.

``python -m tests.class_archive`` makes that of Spark.

Source: JEP 350.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

TIMEOUT_S = 120
# A JVM that does not use its archive says so on its standard output, where a test reads something else.
QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
SPARK_SESSION = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", " ".join(sys.argv[1:])).getOrCreate()
total = spark.range(10, numPartitions=2).selectExpr("sum(id)").collect()[0][0]
jvm = spark.sparkContext._gateway.proc
spark.stop()
jvm.stdin.close()
assert jvm.wait(60) is not None and total == 45
"""


def cache() -> Path:
    """The directory of what tests keep from one run to the next."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dlog"


def archive_path(jars: Iterable[Path], options: Iterable[str]) -> Path | None:
    """Where the archive of these jars is, or would be; None without Java."""
    home = os.environ.get("JAVA_HOME")
    java = (shutil.which("java", path=str(Path(home, "bin"))) if home else None) or shutil.which("java")
    if java is None:
        return None
    # An archive fits one build of Java, and jars by their path, size and time.
    states = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(jars)]
    program = Path(java).resolve()
    key = repr((str(program), program.stat().st_mtime_ns, states, tuple(options)))
    return cache() / "class-archives" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def using(archive: Path | None) -> list[str]:
    """The options of a JVM that uses an archive; none if it is not there."""
    return [f"-XX:SharedArchiveFile={archive}", *QUIET] if archive is not None and archive.exists() else []


def make(archive: Path, command: Callable[[str], list[str]]) -> str | None:
    """Run the command with the option that writes an archive; return why that failed, or None."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix="partial-") as scratch:
        made = Path(scratch, "made.jsa")
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": scratch}
        try:
            done = subprocess.run(
                command(f"-XX:ArchiveClassesAtExit={made}"),
                cwd=scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return f"it took longer than {TIMEOUT_S} s"
        if done.returncode or not made.exists():
            return "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        made.rename(archive)
    return None


# Spark.

SPARK_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def spark_archive() -> Path | None:
    """Where the archive of the installed Spark is."""
    import pyspark

    return archive_path(Path(pyspark.__file__).parent.glob("jars/*.jar"), SPARK_OPTIONS)


def spark_options() -> str:
    """The options of a driver's JVM in the tests."""
    return " ".join([*SPARK_OPTIONS, *using(spark_archive())])


def train_spark() -> str | None:
    """Make the archive of Spark unless it is there; return why that failed, or None."""
    archive = spark_archive()
    if archive is None:
        return "there is no Java"
    if archive.exists():
        return None
    return make(archive, lambda option: [sys.executable, "-c", SPARK_SESSION, *SPARK_OPTIONS, option])


if __name__ == "__main__":
    if (failure := train_spark()) is not None:
        print(f"no archive of Spark's classes, so its tests start slower: {failure}", file=sys.stderr)
