"""All places of settings together: which value holds, and the configuration made of them.

Inside: precedence (file, environment, query, keyword), which settings count for a kind of namespace, making
``NamespaceConfig``, reading the files that settings name.
Not inside: reading the places (``sources``), opening a namespace (``dlog.connect``).
Always: a setting that a keyword gives is never changed; the configuration file is only the one that the
caller or DLOG_CONFIG names, never one that lies somewhere; no secret is kept here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from dlog.config import HealConfig, NamespaceConfig, ReaderConfig, WriterConfig, given_settings
from dlog.encryption import KeyFile
from dlog.errors import ConfigError
from dlog.settings.sources import (
    CONFIG_VARIABLE,
    Given,
    Source,
    read_environment,
    read_file,
    read_texts,
    split_query,
)
from dlog.settings.table import BY_VARIABLE, SECTIONS, SETTINGS, Applies
from ledger.errors import LedgerError
from ledger.metadata_store.errors import MetadataError
from ledger.metadata_store.zookeeper_security import ZooKeeperSecurity, load_zookeeper_security
from ledger.placement.config import PlacementConfig
from ledger.runtime.secret_file import SecretOf, read_secret
from ledger.transport.bookie_security import BookieSecurity, load_bookie_security

_SCHEMES = {"file": Applies.DIRECTORY, "distributedlog": Applies.CLUSTER}
# A keyword that holds what several settings, or a file, give otherwise.
_KEYWORD_FOR = {
    "password_file": "password",
    "bookie_security": "bookie_security",
    "zk_security": "zookeeper_security",
}
_KEYWORD_FOR_SECTION = {
    "placement": "placement",
    "heal": "heal",
    "bookies": "bookie_security",
    "zookeeper": "zookeeper_security",
}


@attrs.frozen
class ClientSettings:
    """The settings from every place but the keywords, for one namespace."""

    uri: str  # without its query
    given: Mapping[str, Given]  # the strongest value of each setting
    config_file: Path | None

    def value(self, name: str) -> Any:
        """The value of a setting that holds."""
        found = self.given.get(name)
        return SETTINGS[name].default if found is None else found.value

    def config(self, scheme: str, keyword: NamespaceConfig | None = None) -> NamespaceConfig:
        """The configuration of a namespace; reads the files that settings name. It may block.

        Args:
            scheme: ``file`` or ``distributedlog``. Settings of the other kind do not count, since a place may
                serve several namespaces, such as a directory and the cluster that its logs were moved to.
                In a query they are an error.
            keyword: The caller's own settings, which are stronger than all others.

        Raises:
            ConfigError: Settings contradict each other, or a file cannot be used; the message names places.
        """
        named = frozenset[str]() if keyword is None else given_settings(keyword)
        used = {name: one for name, one in self.given.items() if _counts(one, scheme, named)}
        if not used:
            return keyword or NamespaceConfig()
        keys = _opened(used, "key_file", KeyFile)
        top = {name: one.value for name, one in used.items() if one.setting.attribute and "." not in name}
        if "password_file" in used:
            top["password"] = _opened(used, "password_file", _password)
        if placement := _section(used, "placement"):
            top["placement"] = _made(PlacementConfig, placement, used)
        if heal := _section(used, "heal"):
            top["heal"] = _made(HealConfig, heal, used)
        for name, whole, section in (
            ("bookie_security", "bookie_security", "bookies"),
            ("zookeeper_security", "zk_security", "zookeeper"),
        ):
            if (security := _security(used, whole, section)) is not None:
                top[name] = security
        writer, reader = _section(used, "writer"), _section(used, "reader")
        if keys is not None:
            writer["encryption"] = reader["encryption"] = keys
        ours = keyword or NamespaceConfig()
        top["writer"] = _made(WriterConfig, writer | _named(ours.writer), used)
        top["reader"] = _made(ReaderConfig, reader | _named(ours.reader), used)
        more = {name: getattr(ours, name) for name in named if name not in ("writer", "reader")}
        made: NamespaceConfig = _made(NamespaceConfig, top | more, used)
        return made


def load_settings(
    uri: str,
    *,
    config_file: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> ClientSettings:
    """Read every place. It may block.

    Args:
        uri: The namespace, with or without settings in its query.
        config_file: None: the file that DLOG_CONFIG names, if it is set.
        settings: More settings by name, stronger than the query.

    Raises:
        InvalidUriError: The query is wrong.
        ConfigError: Another place is wrong.
    """
    environment = os.environ if environment is None else environment
    path = config_file or environment.get(CONFIG_VARIABLE) or None
    bare, query = split_query(uri)
    given = {} if path is None else read_file(path)
    given |= read_environment(environment)
    given |= query
    given |= read_texts(settings or {})
    return ClientSettings(bare, given, None if path is None else Path(path))


def has_settings(uri: str, config_file: str | Path | None, settings: Mapping[str, object] | None) -> bool:
    """True if a place besides the keywords gives settings, so that reading them may block."""
    return bool(config_file or settings or "?" in uri) or any(
        map(os.environ.get, (CONFIG_VARIABLE, *BY_VARIABLE))
    )


def namespace_uri_of(config_file: str | Path | None = None) -> str | None:
    """The setting ``uri`` of the configuration file; None if there is none."""
    path = config_file or os.environ.get(CONFIG_VARIABLE)
    found = read_file(path).get("uri") if path else None
    return None if found is None else str(found.value)


def _counts(given: Given, scheme: str, named: frozenset[str]) -> bool:
    setting = given.setting
    if setting.applies is Applies.COMMANDS:
        return False
    keyword = _KEYWORD_FOR.get(setting.name) or _KEYWORD_FOR_SECTION.get(setting.section) or setting.name
    if keyword in named or (keyword == "bookie_security" and named & {"tls", "auth"}):
        return False
    if setting.applies in (Applies.EVERYWHERE, _SCHEMES[scheme]):
        return True
    if given.source in (Source.QUERY, Source.KEYWORD) and setting.name in ("bookie_security", "zk_security"):
        return True  # ``for_scheme`` refuses it
    if given.source is Source.QUERY:
        raise ConfigError(
            f"{given.place}: {setting.name} has no effect on a {scheme}: namespace; leave it out there"
        )
    return False


def _password(path: Path) -> bytes:
    if not (secret := read_secret(path, SecretOf.OURS)):
        raise ValueError(f"{path} is empty")
    return secret.encode()


def _section(used: Mapping[str, Given], section: str) -> dict[str, Any]:
    return {one.setting.key: one.value for one in used.values() if one.setting.section == section}


def _named(config: WriterConfig | ReaderConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in given_settings(config)}


def _security(
    used: Mapping[str, Given], whole: str, section: str
) -> BookieSecurity | ZooKeeperSecurity | None:
    values = _section(used, section)
    if whole not in used:
        kind = SECTIONS[section]
        return _made(kind, values, used) if values else None
    if values:
        first = next(one for one in used.values() if one.setting.section == section)
        raise ConfigError(
            f"{used[whole].place} gives {whole}, and {first.place} gives {first.setting.name}: the file of"
            f" {whole} stands in place of all settings of [{section}]; give only one of them"
        )
    if used[whole].source is Source.ENVIRONMENT:
        return None  # the layers below read it: ``ledger`` and ``namespace`` alone obey the variable, too
    load: Any = (
        load_bookie_security if section == "bookies" else lambda path: load_zookeeper_security(Path(path))
    )
    return _opened(used, whole, load)  # type: ignore[no-any-return]


def _opened(used: Mapping[str, Given], name: str, load: Any) -> Any:
    given = used.get(name)
    if given is None:
        return None
    try:
        return load(given.value)
    except (LedgerError, MetadataError, ConfigError, OSError, ValueError) as exc:
        raise ConfigError(f"{given.place}: {name}: {exc}") from None


def _made(kind: Any, values: Mapping[str, Any], used: Mapping[str, Given]) -> Any:
    """An object of the class. An error about values together names the places of those values."""
    try:
        return kind(**values)
    except (ValueError, LedgerError, MetadataError) as exc:
        message = str(exc)
        section = next(name for name, each in SECTIONS.items() if each is kind)
        places = [
            f"{one.setting.name} from {one.place}"
            for one in used.values()
            if one.setting.section == section and one.setting.key in message
        ]
        raise ConfigError(f"{message} ({'; '.join(places)})" if places else message) from exc
