"""The stored records of a promotion."""

# covers: dlog/promotion/record.py

from __future__ import annotations

import pytest

from dlog.errors import LogMetadataError
from dlog.promotion.record import (
    SourcePhase,
    SourceRecord,
    TargetPhase,
    TargetRecord,
    decode_source,
    decode_target,
    encode_source,
    encode_target,
)


def test_records_are_read_as_they_were_written() -> None:
    for phase in SourcePhase:
        record = SourceRecord("id", "distributedlog://zk1/s", phase, last_seqno=7, is_purged=True)
        assert decode_source(encode_source(record), 3, "/n") == record
        assert decode_source(encode_source(record), 3, "/n").node_version == 3
    for each in TargetPhase:
        wanted = TargetRecord("id", "file:///old", each)
        assert decode_target(encode_target(wanted), 0, "/n") == wanted


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"version":2,"id":"1","target":"t","phase":"done","last_seqno":0,"is_purged":false}',
        b'{"version":1,"id":"1","target":"t","phase":"perhaps","last_seqno":0,"is_purged":false}',
        b'{"version":1,"id":"1","target":"t","phase":"done","last_seqno":true,"is_purged":false}',
        b'{"version":1,"id":"1","phase":"done","last_seqno":0,"is_purged":false}',
    ],
)
def test_other_bytes_are_refused_with_the_path_of_the_node(data: bytes) -> None:
    with pytest.raises(LogMetadataError, match=r"/node.*nothing was changed"):
        decode_source(data, 0, "/node")
    with pytest.raises(LogMetadataError, match="/node"):
        decode_target(data, 0, "/node")
