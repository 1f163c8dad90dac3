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
_PIECE_BYTES_MIN = 4096  # a smaller piece of a frame is joined with those before it

_LENGTH = struct.Struct(">I")


class FrameBuffer:
    """Cuts whole payloads out of the chunks of one connection, in one direction.

    It keeps at most one incomplete frame: at most ``frame_bytes_max`` bytes and one chunk.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        assert frame_bytes_max > PREFIX_BYTES, frame_bytes_max  # validators of the configurations
        self._length_max = frame_bytes_max - PREFIX_BYTES
        self._pieces: list[bytes | bytearray] = []  # of the beginning of an incomplete frame
        self.held_bytes = 0  # the size of the incomplete frame, as far as it has arrived
        self._needed = 0  # the pieces are not examined again before there are this many bytes

    def __repr__(self) -> str:
        return f"<FrameBuffer holding {self.held_bytes} of at least {self._needed} bytes>"

    @property
    def missing_bytes(self) -> int:
        """How many bytes at least complete the incomplete frame; 0 without one."""
        return self._needed - self.held_bytes if self.held_bytes else 0

    def allow(self, frame_bytes_max: int) -> None:
        """Change the limit for the lengths that are examined from now on."""
        assert frame_bytes_max > PREFIX_BYTES, frame_bytes_max  # validators of the configurations
        self._length_max = frame_bytes_max - PREFIX_BYTES

    def discard(self) -> None:
        """Forget the incomplete frame."""
        self._pieces, self.held_bytes, self._needed = [], 0, 0

    def feed(self, chunk: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """Take received bytes; return the payloads that are complete now.

        The result is a byte string, and the start and stop of each payload in it (without its length prefix),
        in the order of arrival. If no incomplete frame was kept before, the byte string is ``chunk`` itself.
        A frame in many pieces is copied once, and small pieces a second time.

        Raises:
            WireError: A length is zero or beyond the limit. The payloads in front of it in the same chunk are
                dropped, and each later call raises too: close the connection.
        """
        held_bytes = self.held_bytes
        if held_bytes:
            if held_bytes + len(chunk) < self._needed:
                self._keep(chunk)
                return b"", []
            data = b"".join((*self._pieces, chunk))
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
                self._pieces = [data[position : position + PREFIX_BYTES]]
                self.held_bytes = self._needed = PREFIX_BYTES
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
        self._pieces = [data[position:]] if position < size else []
        self.held_bytes, self._needed = size - position, needed
        return data, payloads

    def _keep(self, chunk: bytes) -> None:
        # A peer that sends a frame byte by byte must not make an object for each byte.
        self.held_bytes += len(chunk)
        last = self._pieces[-1]
        if len(chunk) >= _PIECE_BYTES_MIN:
            self._pieces.append(chunk)
        elif isinstance(last, bytearray):
            last += chunk
        else:
            self._pieces.append(bytearray(chunk))
