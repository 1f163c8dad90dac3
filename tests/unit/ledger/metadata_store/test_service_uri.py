from __future__ import annotations

import pytest

from ledger.metadata_store.errors import InvalidStoreAddressError
from ledger.metadata_store.service_uri import ServiceUri, parse_metadata_service_uri


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("zk://h1:2181;h2:2181/ledgers", ServiceUri("h1:2181,h2:2181", "/ledgers", None)),
        ("zk+null://h/ledgers", ServiceUri("h", "/ledgers", None)),
        ("zk+flat://h/l", ServiceUri("h", "/l", "flat")),
        ("zk+hierarchical://h/l", ServiceUri("h", "/l", "hierarchical")),
        ("ZK+longhierarchical://h/a/b", ServiceUri("h", "/a/b", "longhierarchical")),
    ],
)
def test_metadata_service_uris(text: str, uri: ServiceUri) -> None:
    assert parse_metadata_service_uri(text) == uri
    assert parse_metadata_service_uri(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("etcd://h/l", "driver 'etcd'"),
        ("zk+ms://h/l", "layout 'ms'"),
        ("zk://h", "path is missing"),
        ("zk:///l", "hosts are missing"),
    ],
)
def test_other_metadata_services_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidStoreAddressError, match=reason):
        parse_metadata_service_uri(text)
