"""What operators of Apache's bookie have in their files starts here, with warnings at most."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie.config.bookie_config import parse_config
from bookie.errors import BookieConfigError

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("*.conf") if not path.stem.endswith("documented"))
OVER_PULSAR = [name for name in FILES if name.startswith("pulsar-")]
DOCUMENTED = [
    (shipped, line)
    for shipped, documented in (("bookkeeper-4.17", "documented"), ("pulsar", "pulsar-documented"))
    for line in (HERE / f"{documented}.conf").read_text().splitlines()
]
# They would open what the operator means to close, are placeholders that Apache's bookie refuses too, or name
# a driver of Pulsar's.
REFUSED = {
    "bookieAuthProviderFactoryClass=null": "or an entry point",
    "metadataServiceUri=metadata-store:oxia://oxia-server:6648/bookkeeper": "driver of Pulsar",
    "metadataServiceUri=metadata-store:zk:my-zk-1:2281/ledgers": "driver of Pulsar",
    "skipListSizeLimit=67108864L": "expected a whole number",
    "tlsClientAuthentication=true": "without it every connection is clear text",
    "tlsProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory": "tlsKeyStore is missing",
}


def over(shipped: str, lines: list[str]) -> str:
    """A shipped configuration in which these lines replace those of their keys."""
    keys = {line.partition("=")[0] for line in lines}
    kept = [one for one in (HERE / shipped).read_text().splitlines() if one.partition("=")[0] not in keys]
    return "".join(f"{line}\n" for line in [*kept, *lines])


@pytest.mark.parametrize("name", [name for name in FILES if name not in OVER_PULSAR])
def test_a_shipped_configuration_starts(name: str) -> None:
    config = parse_config((HERE / name).read_text(), name)
    assert config.directories.ledger


@pytest.mark.parametrize("name", OVER_PULSAR)
def test_a_configuration_over_that_of_pulsar_starts(name: str) -> None:
    config = parse_config(over("pulsar.conf", (HERE / name).read_text().splitlines()), name)
    assert config.directories.ledger


@pytest.mark.slow
@pytest.mark.parametrize(("shipped", "line"), DOCUMENTED)
def test_a_documented_line_is_no_reason_to_refuse(shipped: str, line: str) -> None:
    text = over(f"{shipped}.conf", [line])
    if line in REFUSED:
        with pytest.raises(BookieConfigError, match=REFUSED[line]):
            parse_config(text, "bk_server.conf")
    else:
        assert parse_config(text, "bk_server.conf").directories.ledger
