from __future__ import annotations

import pytest

from ledger.catalog.service_info import Endpoint, ServiceInfo, decode_service_info, encode_service_info
from ledger.errors import MetadataFormatError
from ledger.wire.data_formats_pb2 import BookieServiceInfoFormat

RPC = Endpoint("bookie", 3181, "192.0.2.10", "bookie-rpc", extensions=("tls",))
HTTP = Endpoint("httpserver", 8080, "0.0.0.0", "http")


def test_entries_are_read_and_written_at_the_rpc_endpoint() -> None:
    assert ServiceInfo((HTTP, RPC)).rpc is RPC
    assert ServiceInfo((HTTP,)).rpc is None


def test_a_node_without_data_has_no_endpoints() -> None:
    assert decode_service_info(b"") == ServiceInfo()
    assert encode_service_info(ServiceInfo()) == b""


def test_an_incomplete_endpoint_is_refused() -> None:
    message = BookieServiceInfoFormat()
    message.endpoints.add(id="bookie", port=3181)
    with pytest.raises(MetadataFormatError, match="incomplete"):
        decode_service_info(message.SerializePartialToString())


def test_properties_are_written_in_one_order() -> None:
    one = ServiceInfo((RPC,), {"a": "1", "b": "2"})
    other = ServiceInfo((RPC,), {"b": "2", "a": "1"})
    assert encode_service_info(one) == encode_service_info(other)
