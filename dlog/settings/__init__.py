"""One client configuration for the library, the commands and Spark.

Inside: the table of settings, the places that give them (file, environment, a URI's query, keywords), their
precedence. Not inside: the classes that programs fill (``dlog.config``), the command
(``dlog.cli.setup.config``).
Begin at ``table``.
"""

from __future__ import annotations

from dlog.settings.resolved import ClientSettings, has_settings, load_settings, namespace_uri_of
from dlog.settings.sources import CONFIG_VARIABLE, Given, Source, read_file, read_texts, split_query
from dlog.settings.table import SETTINGS, Applies, Setting
from ledger.settings import NONE, shown

__all__ = [
    "CONFIG_VARIABLE",
    "NONE",
    "SETTINGS",
    "Applies",
    "ClientSettings",
    "Given",
    "Setting",
    "Source",
    "has_settings",
    "load_settings",
    "namespace_uri_of",
    "read_file",
    "read_texts",
    "shown",
    "split_query",
]
