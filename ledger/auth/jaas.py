"""Files of JAAS (Java's login configuration), as Apache's bookies and clients name their users.

    Bookie {
        org.apache.zookeeper.server.auth.DigestLoginModule required
            user_alice="..."          // on the bookie: user_<name>="<password>"
            user_bob="...";
    };
    BookKeeper {
        org.apache.zookeeper.server.auth.DigestLoginModule required
            username="alice"          // on the client
            password="...";
    };

Inside: parsing a file, the users or the login of a section. Not inside: which section (``sasl``).
Always: an error names file, line and section, never a value.

Source: javax.security.auth.login.Configuration; docs/protocol.md 12.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from ledger.runtime.secret_file import SecretOf, read_secret

_TOKEN = re.compile(
    r'\s+|//[^\n]*|#[^\n]*|/\*.*?\*/|(?P<string>"(?:[^"\\]|\\.)*")|(?P<mark>[{};=])|(?P<word>[^\s{};="]+)',
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@attrs.frozen
class JaasSection:
    """One section: its login module and the options of it."""

    name: str
    module: str
    options: Mapping[str, str] = attrs.field(repr=False)

    @property
    def users(self) -> dict[str, str]:
        """The passwords of a bookie's section by user."""
        prefix = "user_"
        return {
            name.removeprefix(prefix): value
            for name, value in self.options.items()
            if name.startswith(prefix)
        }


def read_section(path: Path, name: str) -> JaasSection:
    """Read a section for DIGEST-MD5.

    Raises:
        OSError: The file cannot be read.
        ValueError: Others may change it; it does not parse, or lacks the section; or that is for Kerberos.
    """
    sections = parse_jaas(read_secret(path, SecretOf.APACHE), str(path))
    if name not in sections:
        raise ValueError(f"{path} has no section {name}; it has {', '.join(sections) or 'none'}")
    section = sections[name]
    if "Krb5" in section.module:
        raise ValueError(
            f"{path}, section {name}: Kerberos is not supported; use"
            " org.apache.zookeeper.server.auth.DigestLoginModule with users and passwords"
        )
    return section


def parse_jaas(text: str, source: str) -> dict[str, JaasSection]:
    """The sections of a file by name. Only the first module of a section counts.

    Raises:
        ValueError: The text does not parse; the message names the line.
    """
    parser = _Parser(text, source)
    sections: dict[str, JaasSection] = {}
    while not parser.is_at_end:
        name = parser.word("the name of a section")
        if name in sections:
            raise parser.error(f"section {name} is there twice")
        parser.mark("{")
        modules: list[JaasSection] = []
        while not parser.takes("}"):
            module = parser.word("a login module")
            parser.word("required, requisite, sufficient or optional")
            options: dict[str, str] = {}
            while not parser.takes(";"):
                key = parser.word("an option or ';'")
                if key in options:
                    raise parser.error(f"option {key} is there twice")
                parser.mark("=")
                options[key] = parser.word(f"the value of {key}")
            modules.append(JaasSection(name, module, options))
        parser.mark(";")
        if not modules:
            raise parser.error(f"section {name} has no login module")
        sections[name] = modules[0]
    return sections


class _Parser:
    """Words, strings and marks of a file, one after the other."""

    def __init__(self, text: str, source: str) -> None:
        self._source = source
        self._line = 1
        self._tokens = list(self._split(text))  # text, line, whether it is a mark
        self._next = 0

    @property
    def is_at_end(self) -> bool:
        return self._next == len(self._tokens)

    def error(self, what: str) -> ValueError:
        return ValueError(f"{self._source}, line {self._line}: {what}")

    def takes(self, mark: str) -> bool:
        """Take the mark if it comes next."""
        if self.is_at_end:
            raise self.error(f"the file ends before {mark!r}")
        text, line, is_mark = self._tokens[self._next]
        if not (is_mark and text == mark):
            return False
        self._line = line
        self._next += 1
        return True

    def mark(self, mark: str) -> None:
        if not self.takes(mark):
            raise self.error(f"expected {mark!r}")

    def word(self, expected: str) -> str:
        if self.is_at_end:
            raise self.error(f"the file ends before {expected}")
        text, self._line, is_mark = self._tokens[self._next]
        if is_mark:
            raise self.error(f"expected {expected}, not {text!r}")
        self._next += 1
        return text

    def _split(self, text: str) -> Iterator[tuple[str, int, bool]]:
        position = 0
        line = 1
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                self._line = line
                raise self.error("a string without its end")
            if match["string"] is not None:
                yield _ESCAPE.sub(r"\1", match["string"][1:-1]), line, False
            elif match["mark"] is not None or match["word"] is not None:
                yield match[0], line, match["mark"] is not None
            line += match[0].count("\n")
            position = match.end()
