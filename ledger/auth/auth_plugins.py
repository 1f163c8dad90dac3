"""The authentication plug-ins of a client by name: ours, and those that other packages install.

A package adds one by an entry point. In its pyproject.toml:

    [project.entry-points."dlog.auth.client"]
    example = "example_auth:open_client_auth"

The entry point loads a function that takes the settings, ``Mapping[str, str]``, and returns an
``AuthFactory``: a callable without arguments that makes the ``ClientAuth`` of one connection.

Inside: finding a plug-in, our plug-ins' settings. Not inside: the bookie's plug-ins
(``bookie.auth.plugins``).

Source: docs/security.md, "Authentication, TLS and certificates".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from ledger.auth.auth import AuthFactory
from ledger.auth.sasl import CLIENT_SECTION, SaslAuth
from ledger.auth.token_auth import TokenAuth

CLIENT_GROUP = "dlog.auth.client"


def client_auth(plugin: str, settings: Mapping[str, str]) -> AuthFactory:
    """Make the value for ``TransportConfig.auth`` and ``NamespaceConfig.auth``.

    Args:
        plugin: ``sasl`` (settings ``username`` and ``passwordFile``, or ``jaasFile`` and ``section``),
            ``token`` (setting ``tokenFile``), or the name of an entry point.

    Raises:
        ValueError: There is no such plug-in, or a setting is unknown, missing or wrong.
    """
    opener = _OURS.get(plugin)
    if opener is None:
        found = list(entry_points(group=CLIENT_GROUP, name=plugin))
        if not found:
            installed = {entry.name for entry in entry_points(group=CLIENT_GROUP)}
            raise ValueError(
                f"there is no authentication plug-in {plugin!r}; there are"
                f" {', '.join(sorted(installed | set(_OURS)))}. Install the package that has it as an entry"
                f" point of {CLIENT_GROUP}"
            )
        opener = found[0].load()
    return opener(settings)


def _open_sasl(settings: Mapping[str, str]) -> AuthFactory:
    _refuse_unknown("sasl", settings, {"username", "passwordFile", "jaasFile", "section"})
    return SaslAuth(
        username=settings.get("username"),
        password_file=_path(settings.get("passwordFile")),
        jaas_file=_path(settings.get("jaasFile")),
        section=settings.get("section", CLIENT_SECTION),
    )


def _open_token(settings: Mapping[str, str]) -> AuthFactory:
    _refuse_unknown("token", settings, {"tokenFile"})
    if "tokenFile" not in settings:
        raise ValueError("the plug-in token needs the setting tokenFile")
    return TokenAuth(Path(settings["tokenFile"]))


def _refuse_unknown(plugin: str, settings: Mapping[str, str], known: set[str]) -> None:
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(
            f"the plug-in {plugin} has no setting {unknown[0]!r}; it has {', '.join(sorted(known))}"
        )


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)


_OURS: dict[str, Callable[[Mapping[str, str]], AuthFactory]] = {"sasl": _open_sasl, "token": _open_token}
