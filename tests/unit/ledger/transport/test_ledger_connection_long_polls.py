"""A long poll has as many replies as it asked for, or as many as the bookie says."""

from __future__ import annotations

from ledger.codes import Code, Operation
from ledger.transport.connection_protocol import (
    FIRST_TRANSACTION_ID,
    ConnectionProtocol,
)
from ledger.wire.messages import (
    ReadReply,
    ReadRequest,
)
from tests.unit.ledger.transport.test_ledger_connection_protocol import v3_reply


def long_poll_reply(number: int, *, more_follow: bool) -> bytes:
    reply = ReadReply(Code.OK, 1, -1, b"body", more_follow=more_follow)
    return v3_reply(reply, number - FIRST_TRANSACTION_ID, Operation.READ_ENTRY)


def test_a_long_poll_gets_as_many_replies_as_it_asked_for_and_no_more() -> None:
    connection = ConnectionProtocol(3)
    call = connection.start_call(ReadRequest(1, -1, previous_lac=0, replies_max=3), False, "w")
    assert isinstance(call.key, int)
    for _ in range(2):
        assert len(connection.receive(long_poll_reply(call.key, more_follow=True))) == 1
    assert connection.failure is None
    assert connection.receive(long_poll_reply(call.key, more_follow=True)) == []
    assert "than were requested" in str(connection.failure)


def test_the_reply_that_no_other_follows_ends_the_long_poll() -> None:
    connection = ConnectionProtocol(3)
    call = connection.start_call(ReadRequest(1, -1, previous_lac=0, replies_max=3), False, "w")
    assert isinstance(call.key, int)
    connection.receive(long_poll_reply(call.key, more_follow=True))
    assert len(connection.receive(long_poll_reply(call.key, more_follow=False))) == 1
    assert connection.receive(long_poll_reply(call.key, more_follow=False)) == []
    assert (connection.failure, connection.close().calls) == (None, [])


def test_a_request_for_one_reply_gets_one_whatever_the_reply_says() -> None:
    connection = ConnectionProtocol(3)
    call = connection.start_call(ReadRequest(1, 7), False, "w")
    assert isinstance(call.key, int)
    assert connection.receive(long_poll_reply(call.key, more_follow=True)) == []
    assert connection.failure is not None
