"""What the keys of a ``bk_server.conf`` do, before their values are read: errors and warnings.

Inside: unknown, refused and repeated keys. Not inside: the fates (``keys``), values (``bookie_config``).
Always: a key that is neither obeyed nor known as without effect is named in a warning or an error. It is an
error if the key may be meant to restrict or to protect something.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookie.config.keys import REFUSAL, Fate, group_of, may_protect, nearest_key
from bookie.config.properties import FileSetting
from bookie.config.settings import Settings
from bookie.errors import BookieConfigError


def check_keys(
    settings: Settings, source: str, parsed: Mapping[str, FileSetting], *, strict: bool = False
) -> list[str]:
    """The warnings about keys, in the order for a log.

    Args:
        strict: An unknown key is an error.

    Raises:
        BookieConfigError: A key is refused; or it is unknown and may protect something.
    """
    ineffective: dict[str, list[str]] = {}
    unknown, repeated = [], []
    for key, setting in parsed.items():
        group = group_of(key)
        if group.fate is Fate.UNKNOWN:
            problem = unknown_key(source, key, setting.line)
            if strict or may_protect(key):
                raise BookieConfigError(problem, key=key)
            unknown.append(f"{problem} It has no effect")
        elif group.fate is Fate.REFUSED:
            if setting.first and not is_same_as_ours(key, parsed):
                raise settings.error(key, f"no value: {REFUSAL}")
        elif group.fate is not Fate.OBEYED:
            ineffective.setdefault(group.reason, []).append(key)
        elif setting.set_count > 1:
            repeated.append(f"{source}: {key} is set {setting.set_count} times; the first value counts")
    return [
        *unknown,
        *(
            f"{source}: keys without effect ({reason}): {', '.join(keys)}"
            for reason, keys in ineffective.items()
        ),
        *repeated,
    ]


def is_same_as_ours(key: str, parsed: Mapping[str, FileSetting]) -> bool:
    """Whether a key of the client's trust store says what the key of the bookie's own says."""
    ours = parsed.get(f"tls{key.removeprefix('client')}")
    return ours is not None and ours.first == parsed[key].first


def unknown_key(source: str, key: str, line: int) -> str:
    """The sentence about an unknown key, with the nearest known one."""
    nearest = nearest_key(key)
    hint = f"; did you mean {nearest}?" if nearest else "."
    return f"{source}, line {line}: there is no key {key!r}{hint}"
