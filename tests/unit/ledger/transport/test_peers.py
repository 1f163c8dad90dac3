"""Two programs prove to each other who they are, over real TLS; each attack ends with a refusal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from trio.testing import memory_stream_pair

from ledger.auth.authentication import AuthRefusedError
from ledger.errors import BookieSecurityError, BookieUnavailableError, SecuritySettingsError
from ledger.transport.bookie_security import BookieSecurity
from ledger.transport.peers import PeerSecurity, examine, open_peer_security, prove
from tests.fakes.certificates import EXPIRED, TestAuthority, make_authority

TEST_TIMEOUT_S = 60


@attrs.frozen
class Files:
    """The certificates and passwords of programs."""

    home: Path
    authority: TestAuthority = attrs.field(factory=make_authority)
    stranger: TestAuthority = attrs.field(factory=lambda: make_authority("stranger.test"))

    def tls(
        self, name: str, authority: TestAuthority | None = None, *, expired: bool = False
    ) -> BookieSecurity:
        signed = (authority or self.authority).sign(name, end=EXPIRED if expired else None)
        pem = signed.write_pem(self.home / f"{name}.pem")
        return BookieSecurity(
            tls=True,
            tls_authorities=self.authority.write_pem(self.home / "authority.pem"),
            tls_certificate=pem,
        )

    def sasl(self, user: str, password: str, tls: BookieSecurity | None = None) -> BookieSecurity:
        file = self.home / f"{user}.{len(password)}.password"
        file.write_text(password)
        return attrs.evolve(tls or BookieSecurity(), auth="sasl", username=user, password_file=file)

    def jaas(self, user: str, password: str, **others: str) -> BookieSecurity:
        file = self.home / f"{user}.jaas"
        more = "".join(f' user_{name}="{secret}"' for name, secret in others.items())
        file.write_text(f'BookKeeper {{ M required username="{user}" password="{password}"{more}; }};')
        return BookieSecurity(auth="sasl", jaas_file=file)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@attrs.define
class Ends:
    """What each side has learnt: a name, or why it refuses."""

    dialled: str | Exception | None = None
    dialling: str | Exception | None = None
    received: bytes = b""


@asynccontextmanager
async def meeting(dialling: PeerSecurity, dialled: PeerSecurity) -> AsyncIterator[Ends]:
    """Both ends, to the end of their handshake; then one sends a word to the other."""
    ours, theirs = memory_stream_pair()
    ends = Ends()

    async def dial() -> None:
        try:
            stream, ends.dialling = await prove("owner:1", ours, dialling, "owner.test")
            await stream.send_all(b"word")
        except (BookieUnavailableError, trio.BrokenResourceError) as exc:
            ends.dialling = exc
        finally:
            await trio.aclose_forcefully(ours)

    async def be_dialled() -> None:
        try:
            stream, ends.dialled = await examine(theirs, dialled)
            ends.received = bytes(await stream.receive_some(4))
        except (AuthRefusedError, BookieUnavailableError, trio.BrokenResourceError, ValueError) as exc:
            ends.dialled = exc
        except Exception as exc:
            ends.dialled = exc
        finally:
            await trio.aclose_forcefully(theirs)

    with trio.fail_after(TEST_TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dial)
            nursery.start_soon(be_dialled)
    yield ends


async def met(dialling: BookieSecurity, dialled: BookieSecurity) -> Ends:
    async with meeting(open_peer_security(dialling), open_peer_security(dialled)) as ends:
        return ends


async def test_without_tls_and_authentication_nothing_is_proven() -> None:
    ends = await met(BookieSecurity(), BookieSecurity())
    assert (ends.dialling, ends.dialled, ends.received) == (None, None, b"word")


async def test_over_tls_both_sides_learn_the_name_in_the_others_certificate(files: Files) -> None:
    """No certificate names the host that is dialled: that proves nothing here."""
    ends = await met(files.tls("billing"), files.tls("shop"))
    assert (ends.dialling, ends.dialled, ends.received) == ("CN=shop", "CN=billing", b"word")


@pytest.mark.parametrize("expired", [False, True], ids=["of another authority", "expired"])
async def test_a_bad_certificate_is_refused_by_the_program_that_was_dialled(
    files: Files, expired: bool
) -> None:
    bad = files.tls("billing", None if expired else files.stranger, expired=expired)
    ends = await met(bad, files.tls("shop"))
    assert isinstance(ends.dialled, trio.BrokenResourceError)
    assert ends.received == b""


@pytest.mark.parametrize("expired", [False, True], ids=["of another authority", "expired"])
async def test_a_bad_certificate_is_refused_by_the_program_that_dials(files: Files, expired: bool) -> None:
    bad = files.tls("shop", None if expired else files.stranger, expired=expired)
    ends = await met(files.tls("billing"), bad)
    assert isinstance(ends.dialling, BookieSecurityError)
    assert "the TLS handshake failed" in str(ends.dialling)
    assert ends.received == b""


async def test_a_program_without_a_certificate_is_refused(files: Files) -> None:
    dialled = open_peer_security(files.tls("shop"))
    assert dialled.dial is not None
    without = open_peer_security(files.tls("billing"))
    context = BookieSecurity(tls=True, tls_authorities=files.home / "authority.pem", tls_check_hostname=False)
    async with meeting(attrs.evolve(without, dial=context.open()[0]), dialled) as ends:
        assert isinstance(ends.dialled, trio.BrokenResourceError)
        assert ends.received == b""


@pytest.mark.parametrize("is_plain", ["dialling", "dialled"])
async def test_clear_text_is_never_served_where_tls_is_configured(files: Files, is_plain: str) -> None:
    plain, tls = BookieSecurity(), files.tls("shop")
    ends = await (met(plain, tls) if is_plain == "dialling" else met(tls, plain))
    refused = ends.dialled if is_plain == "dialling" else ends.dialling
    assert isinstance(refused, Exception)
    assert ends.received != b"word"


async def test_by_sasl_the_user_is_the_name_in_clear_text_and_inside_tls(files: Files) -> None:
    own = files.sasl("shop", "long and random")
    ends = await met(own, own)
    assert (ends.dialling, ends.dialled, ends.received) == (None, "shop", b"word")
    inside = files.sasl("shop", "long and random", files.tls("any"))
    ends = await met(inside, inside)
    assert (ends.dialling, ends.dialled, ends.received) == (None, "shop", b"word")


async def test_another_user_needs_a_line_in_the_section_of_the_program_that_is_dialled(files: Files) -> None:
    billing = files.jaas("billing", "its password")
    ends = await met(billing, files.jaas("shop", "long and random", billing="its password"))
    assert (ends.dialled, ends.received) == ("billing", b"word")
    ends = await met(billing, files.jaas("shop", "long and random"))
    assert isinstance(ends.dialled, AuthRefusedError)
    assert isinstance(ends.dialling, BookieSecurityError)
    assert "refused plug-in 'sasl' with UNAUTHORIZED" in str(ends.dialling)


async def test_a_wrong_password_is_refused(files: Files) -> None:
    ends = await met(files.sasl("shop", "guessed"), files.sasl("shop", "long and random"))
    assert isinstance(ends.dialled, AuthRefusedError)
    assert isinstance(ends.dialling, BookieSecurityError)
    assert ends.received == b""


async def test_a_program_that_does_not_authenticate_is_not_served(files: Files) -> None:
    ends = await met(BookieSecurity(), files.sasl("shop", "long and random"))
    assert isinstance(ends.dialled, Exception)
    assert ends.received == b""


def test_settings_that_prove_nothing_to_another_program_are_refused(files: Files) -> None:
    tls = files.tls("shop")
    token = files.home / "token"
    token.write_text("0123456789abcdef0123456789abcdef")
    for bad in (attrs.evolve(tls, tls_certificate=None), attrs.evolve(tls, tls_authorities=None)):
        with pytest.raises(SecuritySettingsError, match="set tls_authorities, tls_certificate and tls_key"):
            open_peer_security(bad)
    certificates = open_peer_security(attrs.evolve(tls, auth="token", token_file=token))
    assert (certificates.login, certificates.users) == (None, None)  # the token is for bookies alone


def test_no_repr_has_a_password(files: Files) -> None:
    assert "long and random" not in repr(open_peer_security(files.jaas("shop", "long and random")))
