"""A request and a reply of the HTTP port, as values, and the values that requests carry.

Inside: query, JSON body, the errors with their status. Not inside: the server and its framework.
Always: a body that is no JSON object is refused before a route sees it.

Source: HttpServer.java (StatusCode), JsonUtil.java.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import trio

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
BODY_BYTES_MAX = 1 << 16
NUMBER_MAX = 2**63 - 1  # what Java's long and the paths of ledgers hold


class RequestRefusedError(Exception):
    """The request is not done; the message becomes the body of the reply."""

    status = 500


class BadRequestError(RequestRefusedError):
    """The request is invalid."""

    status = 400


class NotFoundError(RequestRefusedError):
    """The request asks for something that does not exist."""

    status = 404


class UnavailableError(RequestRefusedError):
    """The bookie cannot do it now, or has not the part that does it."""

    status = 503


class Method(enum.Enum):
    """The methods that routes have; HEAD is answered like GET."""

    GET = "GET"
    PUT = "PUT"
    POST = "POST"
    DELETE = "DELETE"


@attrs.frozen
class AdminReply:
    """The reply to one request."""

    status: int
    body: bytes
    media_type: str = JSON
    headers: Mapping[str, str] = attrs.field(factory=dict)


def json_reply(value: Any) -> AdminReply:
    """200 with a JSON value, indented as Apache's."""
    return AdminReply(200, json.dumps(value, indent=2).encode())


async def long_json_reply(value: Any) -> AdminReply:
    """``json_reply`` of a value that may be long: a thread encodes it, and the loop continues."""
    return await trio.to_thread.run_sync(json_reply, value)


def text_reply(text: str, status: int = 200) -> AdminReply:
    """Plain text as it is; half of a surrogate pair, which JSON and names of files may hold, is escaped."""
    return AdminReply(status, text.encode("utf-8", "backslashreplace"), TEXT)


@attrs.frozen
class RequestHead:
    """A request without its body, for the guard."""

    method: str
    path: str  # decoded
    query: Mapping[str, str] = attrs.field(factory=dict)  # the first value of each name
    headers: Mapping[str, Sequence[str]] = attrs.field(factory=dict)  # by name in lower case
    scheme: str = "http"
    peer: str = ""  # the address


@attrs.frozen(slots=False)
class AdminRequest:
    """One request. Its values are read with the errors that the client gets."""

    method: Method
    path: str
    query: Mapping[str, str] = attrs.field(factory=dict)  # the first value of each name
    content: bytes = attrs.field(default=b"", repr=False)
    identity: str = "HTTP"  # of the peer, for the audit log

    @cached_property
    def body(self) -> dict[str, Any]:
        """The JSON object in the body; empty without a body. Raises ``BadRequestError``."""
        if len(self.content) > BODY_BYTES_MAX:
            raise BadRequestError(f"the body has more than {BODY_BYTES_MAX} bytes")
        if not self.content.strip():
            return {}
        try:
            value = json.loads(self.content)
        except (ValueError, RecursionError) as exc:
            raise BadRequestError(f"the body is not JSON: {exc}") from exc
        if not isinstance(value, dict):
            raise BadRequestError("the body is not a JSON object")
        return value

    def flag(self, name: str) -> bool | None:
        """A boolean of the body; None if it is absent. Raises ``BadRequestError``."""
        value = self.body.get(name)
        if value is not None and not isinstance(value, bool):
            raise BadRequestError(f"{name}: expected true or false, not {value!r}")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number of the query. Raises ``BadRequestError`` if it is absent and has no default."""
        text = self.query.get(name)
        if text is None or text == "":
            if default is None:
                raise BadRequestError(f"the query has no {name}; add ?{name}=NUMBER")
            return default
        if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20):
            raise BadRequestError(f"{name}: expected a whole number, not {text[:40]!r}")
        value = int(text)
        if not -NUMBER_MAX <= value <= NUMBER_MAX:
            raise BadRequestError(f"{name}: expected at most {NUMBER_MAX}, not {text}")
        return value

    def is_true(self, name: str) -> bool:
        """True if a name of the query has the value true, as Java's parseBoolean."""
        return self.query.get(name, "").lower() == "true"


def text_of(value: bool) -> str:
    """A boolean as Apache's routes write some of them, as a JSON string."""
    return "true" if value else "false"
