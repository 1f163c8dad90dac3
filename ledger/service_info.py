"""How to reach a bookie: what it writes into the node that registers it.

The node holds a ``BookieServiceInfoFormat``; without data, the bookie's id is its address (``host:port``).

Inside: the value and its bytes. Not inside: the node (``bookie.registration``), asking it (``membership``).

Source: BookieServiceInfo.java, BookieServiceInfoUtils.java; reference 7.2.
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
HTTP_ID = "httpserver"
HTTP_PROTOCOL = "http"
TLS_EXTENSION = "tls"
LOCATION_PROPERTY = "networkLocation"  # ours: Apache's bookies announce none


@attrs.frozen
class Endpoint:
    """One service of a bookie: where it listens and what it speaks there."""

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
        """Where entries are read and written; None: take the bookie's id as ``host:port``."""
        for endpoint in self.endpoints:
            if endpoint.protocol == RPC_PROTOCOL:
                return endpoint
        return None

    @property
    def network_location(self) -> str | None:
        """Where the bookie says it stands, such as ``/region/rack``."""
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
    """What a registration node says; no data gives a ``ServiceInfo`` without endpoints.

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
        raise MetadataFormatError(f"a bookie's service info that does not parse: {exc}") from exc
