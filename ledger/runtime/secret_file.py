"""Reading a file with a secret: a password, a token, a key. One rule for all of them.

| the file | a secret of ours (``OURS``) | a file that Apache's configurations name (``APACHE``) |
|---|---|---|
| other users may write it, or replace it in its directory | refused | refused |
| other users may read it | refused | a warning in the log |
| it is no regular file, or has more bytes than expected | refused | refused |

"Other users" are the file's group, all others, and an owner other than this process's user and root.
A symlink is followed, because containers and certificate tools rotate secrets by it. The rule then applies to
the target, and to both directories. A directory that all users may write needs the sticky bit. The group of a
directory is trusted, and so are the directories above.

Inside: the rule, the bounded read, one warning for each state of a file.
Not inside: the use of the secret (``ledger.auth``, ``bookie.auth``, ``bookie.http``, ``dlog.encryption``).
Always: the checked descriptor is read; no error quotes a secret; every reader of a secret uses this module
(``test_secrets_are_read_in_one_place`` in ``tests/test_house_rules.py``).

Source: open(2), inode(7); OpenSSH's ``StrictModes``; docs/security.md, "Files with secrets".
"""

from __future__ import annotations

import enum
import errno
import os
import stat
from pathlib import Path

import attrs

from ledger.runtime.events import event
from ledger.runtime.log_lines import get_logger

logger = get_logger(__name__)

SECRET_BYTES_MAX = 1 << 20
_OTHERS_READ, _OTHERS_WRITE, _OTHERS = 0o044, 0o022, 0o077
_WARNED_MAX = 1024  # files; their number is that of the configured ones

_warned: dict[str, str] = {}  # by path, the last warning: files are read again for each connection


class SecretOf(enum.Enum):
    """The configuration that names a file with a secret."""

    OURS = "ours"
    APACHE = "apache"


class SecretFileError(ValueError):
    """A file with a secret must not be used. The message names the file, the reason and the remedy."""


@attrs.frozen
class Secret:
    """The content of a file with a secret."""

    content: bytes = attrs.field(repr=False)
    state: tuple[int, int, int]
    """Inode, time of change and size; another value means another content."""


def load_secret(path: Path, of: SecretOf, *, bytes_max: int = SECRET_BYTES_MAX) -> Secret:
    """Check a file and read it.

    Raises:
        OSError: It cannot be opened or read.
        SecretFileError: Other users may write or replace it; they may read it, and it is ours; it is no
            regular file; or it is longer than ``bytes_max``.
    """
    # Without O_NONBLOCK opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        _check(path, found, of)
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise SecretFileError(f"{path} has more than {bytes_max} bytes; name the file with the secret")
    return Secret(content, (found.st_ino, found.st_mtime_ns, found.st_size))


def read_secret(path: Path, of: SecretOf) -> str:
    """The text of a file without white space at both ends, as Apache trims its password files.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no UTF-8; or ``SecretFileError``, as for ``load_secret``.
    """
    content = load_secret(path, of).content
    try:
        return content.decode().strip()
    except UnicodeDecodeError:
        pass  # its message would quote bytes of the secret
    raise ValueError(f"{path} is not UTF-8")


def check_secret(path: Path, of: SecretOf) -> None:
    """Check a file that something else reads, such as OpenSSL or a parser of configurations.

    Raises:
        OSError, SecretFileError: As for ``load_secret``.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check(path, os.fstat(descriptor), of)
    finally:
        os.close(descriptor)


def create_secret(path: Path, content: str) -> None:
    """Create a file that only its owner may use.

    Raises:
        FileExistsError, OSError: Nothing was changed.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o600)  # the umask may have taken rights of the owner
        file.write(content)


def _check(path: Path, found: os.stat_result, of: SecretOf) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise SecretFileError(f"{path} is no regular file; name the file with the secret")
    mode = stat.S_IMODE(found.st_mode)
    remedy = f"run `chmod 600 {path}`"
    if mode & _OTHERS_WRITE:
        raise SecretFileError(f"{path}: other users may change it (mode {mode:o}); {remedy}")
    user = os.geteuid()
    if found.st_uid not in (0, user) and user != 0:  # root decides for itself, as in a container
        raise SecretFileError(
            f"{path}: it belongs to user {found.st_uid}, and this is user {user}. Use a file"
            " of this user or of root"
        )
    _check_directories(path)
    if not mode & _OTHERS:
        _warned.pop(str(path), None)
    elif of is SecretOf.OURS:
        raise SecretFileError(f"{path}: other users may read it (mode {mode:o}); {remedy}")
    else:
        _warn(path, f"other users may read this file with a secret (mode {mode:o}); {remedy}")


def _check_directories(path: Path) -> None:
    for directory in {path.parent, path.resolve().parent}:
        mode = stat.S_IMODE(directory.stat().st_mode)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise SecretFileError(
                f"{path}: all users may replace it, because they may write its directory {directory} (mode"
                f" {mode:o}); run `chmod o-w {directory}`, or move the file"
            )


def _warn(path: Path, text: str) -> None:
    name = str(path)
    if _warned.get(name) == text:
        return
    if len(_warned) < _WARNED_MAX:
        _warned[name] = text
    logger.warning("%s: %s", path, text, extra=event("secret.readable", path=name))
