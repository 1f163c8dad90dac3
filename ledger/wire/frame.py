"""Frames: a length in front of each message, the same for both protocol versions and directions.

offset  size  field
     0     4  n          unsigned, big-endian: how many bytes follow
     4     n  payload    one message of v2 or v3; n = 0 is no message

Inside: cutting whole payloads out of what a socket brought, and the limit on their size.
Not inside: what a payload means (``v2``, ``v3``), the socket.
Always: a length is checked when its four bytes are there, before anything is kept for it.

Source: BookieProtoEncoding.java, Netty's LengthFieldBasedFrameDecoder as BookieNettyServer.java sets it up.
"""

from __future__ import annotations

import struct

from ledger.errors import WireError

FRAME_BYTES_MAX = 5_242_880  # the 4 bytes of the prefix included
PREFIX_BYTES = 4

_LENGTH = struct.Struct(">I")


class FrameBuffer:
    """Cuts whole payloads out of the chunks of one connection, in one direction.

    It keeps at most one unfinished frame, so at most ``frame_bytes_max`` bytes and one chunk.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        assert frame_bytes_max > PREFIX_BYTES, frame_bytes_max
        self._length_max = frame_bytes_max - PREFIX_BYTES
        self._tail = bytearray()  # the beginning of a frame whose end has not come
        self._needed = 0  # _tail is looked at again once this many bytes are there

    def __repr__(self) -> str:
        return f"<FrameBuffer holding {len(self._tail)} of at least {self._needed} bytes>"

    @property
    def held_bytes(self) -> int:
        """Of a frame whose end has not come."""
        return len(self._tail)

    def feed(self, chunk: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """Take what the socket brought; give back the payloads that are whole now.

        The result is a byte string and, for each payload in it, where it starts and stops (without its
        length prefix), in the order of arrival. When nothing was left over from before, the byte string is
        ``chunk`` itself; a frame in many pieces costs two copies of its bytes, however many they are.

        Raises:
            WireError: A length of zero or beyond the limit. Whole payloads in front of it in the same chunk
                are dropped with it: close the connection. Each later call raises too.
        """
        tail = self._tail
        if tail:
            if len(tail) + len(chunk) < self._needed:
                tail += chunk
                return b"", []
            data = b"".join((tail, chunk))
        else:
            data = chunk
        size = len(data)
        length_max = self._length_max
        length_at = _LENGTH.unpack_from
        payloads: list[tuple[int, int]] = []
        position = 0
        needed = PREFIX_BYTES
        while size - position >= PREFIX_BYTES:
            (length,) = length_at(data, position)
            if not 0 < length <= length_max:
                # Kept, so that feeding on after the error meets the same four bytes, not what follows them.
                self._tail, self._needed = bytearray(data[position : position + PREFIX_BYTES]), PREFIX_BYTES
                raise WireError(
                    f"a frame says that {length} bytes follow; 1 to {length_max} are allowed. "
                    "The peer speaks another protocol, or its frame limit is larger than ours"
                )
            start = position + PREFIX_BYTES
            stop = start + length
            if stop > size:
                needed = PREFIX_BYTES + length
                break
            payloads.append((start, stop))
            position = stop
        self._tail = bytearray(data[position:]) if position < size else bytearray()
        self._needed = needed
        return data, payloads
