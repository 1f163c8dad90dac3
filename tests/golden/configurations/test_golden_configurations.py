"""What operators of Apache's bookie have in their files starts here, with warnings at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.config.bookie_config import parse_config
from bookie.errors import BookieConfigError

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("*.conf") if path.name != "documented.conf")
SHIPPED = (HERE / "bookkeeper-4.17.conf").read_text()
DOCUMENTED = (HERE / "documented.conf").read_text().splitlines()
# They would open what the operator means to close, or are placeholders that Apache's bookie refuses too.
REFUSED = {
    "bookieAuthProviderFactoryClass=null": "or an entry point",
    "tlsClientAuthentication=true": "without it every connection is clear text",
    "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory": "tlsKeyStore is missing",
}


@pytest.mark.parametrize("name", FILES)
def test_a_shipped_configuration_starts(name: str) -> None:
    config = parse_config((HERE / name).read_text(), name)
    assert config.directories.ledger


@pytest.mark.slow
@pytest.mark.parametrize("line", DOCUMENTED)
def test_a_documented_line_is_no_reason_to_refuse(line: str) -> None:
    key = line.partition("=")[0]
    others = "".join(f"{one}\n" for one in SHIPPED.splitlines() if one.partition("=")[0] != key)
    text = f"{others}{line}\n"
    if line in REFUSED:
        with pytest.raises(BookieConfigError, match=REFUSED[line]):
            parse_config(text, "bk_server.conf")
    else:
        assert parse_config(text, "bk_server.conf").directories.ledger
