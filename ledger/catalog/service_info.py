"""The addresses of a bookie, as stored in its registration node.

The node holds a ``BookieServiceInfoFormat``. If it has no data, the id of the bookie is its address
(``host:port``).

Inside: the value and its bytes. Not inside: writing the node (``bookie.cluster.registration``) and reading it
(``membership``).

Source: BookieServiceInfo.java, BookieServiceInfoUtils.java; docs/metadata.md 7.2.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from google.protobuf.message import DecodeError

from ledger.errors import MetadataFormatError
from ledger.wire.data_formats_pb2 import BookieServiceInfoFormat
from ledger.wire.protobuf import text_of

RPC_ID = "bookie"
RPC_PROTOCOL = "bookie-rpc"
TLS_EXTENSION = "tls"
LOCATION_PROPERTY = "networkLocation"  # our own; Apache's bookies do not announce it


@attrs.frozen
class Endpoint:
    """One service of a bookie: its address and its protocol."""

    id: str
    port: int
    host: str
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@attrs.frozen
class ServiceInfo:
    """All services of one bookie."""

    endpoints: tuple[Endpoint, ...] = ()
    properties: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    @property
    def rpc(self) -> Endpoint | None:
        """The endpoint for entries; None: the id of the bookie is the address (``host:port``)."""
        for endpoint in self.endpoints:
            if endpoint.protocol == RPC_PROTOCOL:
                return endpoint
        return None

    @property
    def network_location(self) -> str | None:
        """The location that the bookie announces, such as ``/region/rack``."""
        return self.properties.get(LOCATION_PROPERTY)


def encode_service_info(info: ServiceInfo) -> bytes:
    """The data of a registration node."""
    message = BookieServiceInfoFormat(properties=info.properties)
    for endpoint in info.endpoints:
        message.endpoints.add(
            id=endpoint.id,
            port=endpoint.port,
            host=endpoint.host,
            protocol=endpoint.protocol,
            auth=endpoint.auth,
            extensions=endpoint.extensions,
        )
    return message.SerializeToString(deterministic=True)


def decode_service_info(data: bytes) -> ServiceInfo:
    """Decode the data of a registration node; empty data gives a ``ServiceInfo`` without endpoints.

    Raises:
        MetadataFormatError: It does not parse, or an endpoint lacks one of its parts.
    """
    message = BookieServiceInfoFormat()
    try:
        message.ParseFromString(data)
        if not message.IsInitialized():
            raise MetadataFormatError("a bookie's service info with an incomplete endpoint")
        return ServiceInfo(
            tuple(
                Endpoint(
                    text_of(endpoint.id),
                    endpoint.port,
                    text_of(endpoint.host),
                    text_of(endpoint.protocol),
                    tuple(map(text_of, endpoint.auth)),
                    tuple(map(text_of, endpoint.extensions)),
                )
                for endpoint in message.endpoints
            ),
            {text_of(key): text_of(value) for key, value in message.properties.items()},
        )
    except (DecodeError, UnicodeDecodeError) as exc:
        raise MetadataFormatError(f"a bookie's service info that does not parse: {exc}") from None
