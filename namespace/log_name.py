"""Which names a log may have.

Source: DistributedLog, DLUtils.java (validateAndNormalizeLogName). Two differences: a leading slash is
refused here, not taken off, so that a log has one name; and an empty name gets a message.
"""

from __future__ import annotations

from ledger.metadata_store.store import FORBIDDEN_CHARACTERS
from namespace.errors import InvalidLogNameError

RESERVED_PREFIXES = (".", "<")


def check_log_name(name: str) -> str:
    """Return the name, if a log may have it.

    A name may have several parts (``a/b/c``). A name that starts with ``.`` or ``<`` is reserved.

    Raises:
        InvalidLogNameError: The message gives the reason and the place.
    """

    def refusal(reason: str) -> InvalidLogNameError:
        return InvalidLogNameError(f"log name {name!r}: {reason}")

    if not isinstance(name, str):
        raise TypeError(f"a log name is a str, not {name!r}")
    if not name:
        raise refusal("it is empty")
    if name.startswith("/"):
        raise refusal("it begins with '/', which is the namespace itself; leave that out")
    if name.startswith(RESERVED_PREFIXES):
        raise refusal("names that start with '.' or '<' are reserved")
    if name.endswith("/"):
        raise refusal("it ends with '/'")
    for index, character in enumerate(name):
        if character in "<> ":
            raise refusal(f"{character!r} at {index} is not allowed")
    if forbidden := FORBIDDEN_CHARACTERS.search(name):
        raise refusal(f"character U+{ord(forbidden[0]):04X} at {forbidden.start()} is not allowed")
    for part in name.split("/"):
        if part == "":
            raise refusal("a part of it is empty ('//')")
        if part in (".", ".."):
            raise refusal(f"{part!r} cannot be a part of it")
    return name
