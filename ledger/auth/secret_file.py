"""Reading a file with a secret: bounded, trimmed, and never quoted in an error.

Not inside: the use of the secret (``sasl``, ``token_auth``, ``tls``).
"""

from __future__ import annotations

from pathlib import Path

SECRET_BYTES_MAX = 1 << 20


def read_secret(path: Path) -> str:
    """The text of a file without white space at both ends, as Apache trims its password files.

    Raises:
        OSError: It cannot be read.
        ValueError: It is longer than ``SECRET_BYTES_MAX``, or no UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(SECRET_BYTES_MAX + 1)
    if len(content) > SECRET_BYTES_MAX:
        raise ValueError(f"{path} has more than {SECRET_BYTES_MAX} bytes; name the file with the secret")
    try:
        return content.decode().strip()
    except UnicodeDecodeError:
        pass  # its message would quote bytes of the secret
    raise ValueError(f"{path} is not UTF-8")
