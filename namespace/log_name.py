"""Which names a log may have.

Source: DistributedLog, DLUtils.java (validateAndNormalizeLogName); three of its quirks are left out: a
reserved name behind a leading slash and a lone slash are refused here, and an empty name gets a message.
"""

from __future__ import annotations

from namespace.errors import InvalidLogNameError
from namespace.store import FORBIDDEN_CHARACTERS

RESERVED_PREFIXES = (".", "<")


def check_log_name(name: str) -> str:
    """Return the name without a leading slash if a log may be called so.

    Names may have several parts (``a/b/c``). A name that starts with ``.`` or ``<`` is reserved.

    Raises:
        InvalidLogNameError: Saying what is wrong and where.
    """

    def refuse(reason: str) -> InvalidLogNameError:
        return InvalidLogNameError(f"log name {name!r}: {reason}")

    log_name = name.removeprefix("/")
    if not log_name:
        raise refuse("it is empty")
    if log_name.startswith(RESERVED_PREFIXES):
        raise refuse("names that start with '.' or '<' are reserved")
    if log_name.endswith("/"):
        raise refuse("it ends with '/'")
    for index, character in enumerate(log_name):
        if character in "<> ":
            raise refuse(f"{character!r} at {index} is not allowed")
    if forbidden := FORBIDDEN_CHARACTERS.search(log_name):
        raise refuse(f"character U+{ord(forbidden[0]):04X} at {forbidden.start()} is not allowed")
    for part in log_name.split("/"):
        if part == "":
            raise refuse("a part of it is empty ('//')")
        if part in (".", ".."):
            raise refuse(f"{part!r} is not a part of a name")
    return log_name
