"""The names of options: ours, Spark's own, and those that are refused with the way to do it here.

An unknown name is an error that suggests the nearest known name: a misspelt option that is silently ignored
would be found only in production. Names are compared in lower case, as Spark passes them.

Source: the options that PySpark 4.2.1 and 4.3.0 pass; a test takes them from a running Spark.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from spark_integration.errors import OptionError

CLIENT = "client."  # before the name of a setting of docs/settings.md
# Spark adds these to the options of a query. They say nothing about logs.
SPARKS_OWN = {"checkpointlocation", "queryname"}
TABLE_HINT = (
    "Spark gives a Python source no options of a table of its catalog, so such a table could not be read. Use"
    " CREATE TEMPORARY VIEW orders USING dlog OPTIONS (uri '...', stream '...') in each session for SELECT,"
    " and the same with columns, CREATE TEMPORARY VIEW target (payload STRING) USING dlog ..., for INSERT"
)
_PATH_HINT = "a log has no path: give .option('uri', ...) and .option('stream', ...), and load() or save()"
_NO_GROUP = "a query joins no group: its checkpoint says what it has read; startingCursor is only a start"
_SECURITY = "use bookieSecurity or configFile: files that only the user of the process can read"
# Names in lower case that are known elsewhere, and what to do here. The first two are what Spark adds for
# load(path) and save(path); the others are those of its connector of Kafka. docs/spark.md has the same table.
ELSEWHERE = {
    "path": _PATH_HINT,
    "paths": _PATH_HINT,
    "kafka.bootstrap.servers": "use uri, which names the namespace",
    "subscribe": "use stream, or streams for several",
    "subscribepattern": "use streamPattern, with * ? [ab] in place of a regular expression",
    "assign": "use stream or streams, with startingOffsets for the places; a log has no partitions",
    "topic": "use stream",
    "startingoffsetsbytimestamp": "use startingTimestamp, which takes one value or JSON by stream",
    "startingoffsetsbytimestampstrategy": "use startingTimestampStrategy",
    "endingoffsetsbytimestamp": "use endingTimestamp, which takes one value or JSON by stream",
    "maxoffsetspertrigger": "use maxRecordsPerTrigger",
    "minoffsetspertrigger": "use minRecordsPerTrigger",
    "kafkaconsumer.polltimeoutms": "use readTimeoutMs for tasks, pollTimeoutMs for the wait of a trigger",
    "fetchoffset.numretries": "the client retries by its own settings, client.*",
    "fetchoffset.retryintervalms": "the client retries by its own settings, client.*",
    "groupidprefix": _NO_GROUP,
    "kafka.group.id": _NO_GROUP,
    "kafka.auto.offset.reset": "use startingOffsets and failOnDataLoss",
    "kafka.isolation.level": "leave it out: readers see confirmed records only",
    "kafka.acks": "leave it out: client.write_quorum and client.ack_quorum say it",
    "kafka.enable.idempotence": "leave it out: the sink writes each batch once",
    "kafka.security.protocol": _SECURITY,
    "kafka.ssl.": _SECURITY,
    "kafka.sasl.": _SECURITY,
    "kafka.": "use a setting of docs/settings.md as client.NAME, or configFile",
}


def by_lower_name(given: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """The options by their names in lower case.

    Raises:
        OptionError: A name is unknown, or Spark passes it for something that this source cannot do.
    """
    options = {key.lower(): value for key, value in given.items()}
    names = {name.lower(): name for name in known}
    if "provider" in options:  # of a table, with its owner, its location and each option twice
        raise OptionError(f"CREATE TABLE ... USING dlog: {TABLE_HINT}")
    for key in options:
        if key in names or key in SPARKS_OWN or key.startswith(CLIENT):
            continue
        if (hint := _elsewhere(key)) is not None:
            raise OptionError(f"option {key!r}: {hint}")
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean {names[near[0]]}?" if near else f"the known options are {', '.join(known)}"
        raise OptionError(f"unknown option {key!r}; {hint}")
    return options


def _elsewhere(key: str) -> str | None:
    """What to do in place of an option of another source."""
    families = [name for name in ELSEWHERE if name.endswith(".") and key.startswith(name)]
    return ELSEWHERE.get(key) or (ELSEWHERE[max(families, key=len)] if families else None)
