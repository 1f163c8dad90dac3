"""The errors of blobs, and the names that blobs may have."""

from __future__ import annotations

import re

from dlog.errors import DLogError
from namespace.blob_nodes import NAME_BYTES_MAX

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class InvalidBlobNameError(DLogError):
    """No blob can have this name. The message gives the reason."""


class BlobNotFoundError(DLogError):
    """There is no blob of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no blob {name!r}; `dlog blob list` prints the names of all blobs")
        self.name = name


class BlobExistsError(DLogError):
    """There is a blob of this name already. Nothing was changed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is a blob {name!r} already; say replace=True to put another content")
        self.name = name


class BlobConflictError(DLogError):
    """The blob is not the one that the caller expects: another program replaced or deleted it.

    ``actual`` is the id of the blob that is there, None if there is none. Nothing was changed.
    """

    def __init__(self, name: str, expected: str, actual: str | None) -> None:
        now = "there is none" if actual is None else f"it is {actual}"
        super().__init__(
            f"blob {name!r} is not {expected} any more: {now}. Nothing was changed; look at it and"
            " decide again"
        )
        self.name, self.expected, self.actual = name, expected, actual


class BlobGoneError(DLogError):
    """The blob was replaced or deleted while it was read. Bytes read before are of the old content."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"blob {name!r} was replaced or deleted while it was read; what was returned is a part of the old"
            " content. Read it again from its beginning"
        )
        self.name = name


class CorruptBlobError(DLogError):
    """The stored content is not what was put. The reader stopped there and skipped nothing."""

    def __init__(self, name: str, evidence: str) -> None:
        super().__init__(
            f"blob {name!r}: {evidence}; the reader stopped there and skipped nothing. Put the blob again"
            " from its source"
        )
        self.name, self.evidence = name, evidence


class UploadLostError(DLogError):
    """The program lost its session with the metadata store while it put a blob. Put it again.

    The blob is not there, unless the message says that this is not known.
    """

    def __init__(self, name: str, evidence: str) -> None:
        super().__init__(f"blob {name!r} was not put: {evidence}; put it again")
        self.name = name


def check_blob_name(name: str) -> str:
    """Return the name, if a blob may have it.

    Raises:
        InvalidBlobNameError: The message gives the reason and the place.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a blob is a str, not {name!r}")

    def refusal(reason: str) -> InvalidBlobNameError:
        return InvalidBlobNameError(f"blob name {name[:80]!r}: {reason}")

    if not name:
        raise refusal("it is empty")
    if found := _CONTROL.search(name):
        raise refusal(f"character U+{ord(found[0]):04X} at {found.start()} is not allowed")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise refusal(f"it has {len(name.encode())} bytes in UTF-8, and at most {NAME_BYTES_MAX} are allowed")
    for part in name.split("/"):
        if part in ("", ".", ".."):
            raise refusal(f"{part!r} cannot be a part of it" if part else "a part of it is empty")
    return name
