"""Frames: a length in front of each message, equal in both protocol versions and directions.

offset  size  field
     0     4  n          unsigned, big-endian: how many bytes follow
     4     n  payload    one message of v2 or v3; n = 0 is an error

Inside: cutting whole payloads out of received bytes, the limit on their size.
Not inside: the meaning of a payload (``v2``, ``v3``), the socket.
Always: a length is checked as soon as its four bytes have arrived, before any of its payload is kept.

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

    It keeps at most one incomplete frame: at most ``frame_bytes_max`` bytes and one chunk.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        assert frame_bytes_max > PREFIX_BYTES, frame_bytes_max
        self._length_max = frame_bytes_max - PREFIX_BYTES
        self._tail = bytearray()  # the beginning of an incomplete frame
        self._needed = 0  # _tail is not examined again before it has this many bytes

    def __repr__(self) -> str:
        return f"<FrameBuffer holding {len(self._tail)} of at least {self._needed} bytes>"

    @property
    def held_bytes(self) -> int:
        """The size of the incomplete frame, as far as it has arrived."""
        return len(self._tail)

    def allow(self, frame_bytes_max: int) -> None:
        """Change the limit for the lengths that are examined from now on."""
        assert frame_bytes_max > PREFIX_BYTES, frame_bytes_max
        self._length_max = frame_bytes_max - PREFIX_BYTES

    def discard(self) -> None:
        """Forget the incomplete frame."""
        self._tail, self._needed = bytearray(), 0

    def feed(self, chunk: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """Take received bytes; return the payloads that are complete now.

        The result is a byte string, and the start and stop of each payload in it (without its length prefix),
        in the order of arrival. If no incomplete frame was kept before, the byte string is ``chunk`` itself.
        A frame in many pieces is copied twice, however many pieces there are.

        Raises:
            WireError: A length is zero or beyond the limit. The payloads in front of it in the same chunk are
                dropped, and each later call raises too: close the connection.
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
                # Kept, so that a later call finds the same four bytes and raises again.
                self._tail, self._needed = bytearray(data[position : position + PREFIX_BYTES]), PREFIX_BYTES
                raise WireError(
                    f"a frame says that {length} bytes follow; 1 to {length_max} are allowed. The peer uses "
                    "another protocol or a larger frame limit; raise frame_bytes_max (nettyMaxFrameSizeBytes)"
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
