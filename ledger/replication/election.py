"""The election of the auditor: the candidate with the smallest vote.

Inside: voting, waiting for the votes before one's own, naming the present auditor. Not inside: auditing.
Always: a session has at most one vote that counts; a candidate returns from ``wait_elected`` only while its
vote is the smallest.

Source: AuditorElector.java, ZkLedgerAuditorManager.java; docs/metadata.md 13.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from ledger.catalog.paths import AUDITOR_ELECTION, VOTE_PREFIX
from ledger.catalog.replication_nodes import decode_vote, encode_vote
from ledger.errors import MetadataFormatError
from ledger.metadata_store.errors import NodeExistsError, NoNodeError
from ledger.metadata_store.store import MetadataStore


def votes_in_order(names: Iterable[str]) -> list[str]:
    """The names that are votes, the earliest first."""

    def number(name: str) -> int | None:
        try:
            return int(name.removeprefix(VOTE_PREFIX)) if name.startswith(VOTE_PREFIX) else None
        except ValueError:
            return None

    votes = [(found, name) for name in names if (found := number(name)) is not None]
    return [name for _, name in sorted(votes)]


class AuditorElection:
    """The candidacy of one session."""

    def __init__(self, session: MetadataStore, root: str, candidate: str) -> None:
        """``candidate``: the id in the vote, for operators."""
        self._session, self._path = session, f"{root}/{AUDITOR_ELECTION}"
        self._vote = encode_vote(candidate)

    async def wait_elected(self) -> None:
        """Vote, and return once this session's vote is the smallest. After an error, call it again."""
        try:
            await self._session.create(self._path, parents=True)
        except NodeExistsError:
            pass
        while True:
            names = votes_in_order((await self._session.children(self._path)).names)
            # By the owner: the reply to a creation may be lost, and a vote without a candidate would block
            # the election for as long as the session lives.
            mine = await self._own(names)
            if not mine:
                await self._session.create(
                    f"{self._path}/{VOTE_PREFIX}", self._vote, ephemeral=True, sequential=True
                )
                continue
            for surplus in mine[1:]:
                await self._delete(surplus)
            turn = names.index(mine[0])
            if turn == 0:
                await self._session.put(self._path, self._vote)
                return
            gone = trio.Event()
            if await self._session.exists(f"{self._path}/{names[turn - 1]}", watch=gone) is not None:
                await gone.wait()

    async def withdraw(self) -> None:
        """Delete the votes of this session."""
        try:
            names = (await self._session.children(self._path)).names
        except NoNodeError:
            return
        for name in await self._own(votes_in_order(names)):
            await self._delete(name)

    async def _own(self, names: Iterable[str]) -> list[str]:
        found = []
        for name in names:
            stat = await self._session.exists(f"{self._path}/{name}")
            if stat is not None and stat.ephemeral_owner == self._session.session_id:
                found.append(name)
        return found

    async def _delete(self, name: str) -> None:
        try:
            await self._session.delete(f"{self._path}/{name}")
        except NoNodeError:
            pass


async def current_auditor(store: MetadataStore, root: str) -> str | None:
    """The id of the present auditor; None if there is no candidate.

    Raises:
        MetadataFormatError: The vote does not parse.
    """
    path = f"{root}/{AUDITOR_ELECTION}"
    await store.sync(root)
    while True:
        try:
            names = votes_in_order((await store.children(path)).names)
        except NoNodeError:
            return None
        if not names:
            return None
        try:
            vote = (await store.get(f"{path}/{names[0]}")).value
        except NoNodeError:
            continue  # it was withdrawn just now
        try:
            return decode_vote(vote)
        except MetadataFormatError as exc:
            raise MetadataFormatError(f"{path}/{names[0]}: {exc}") from None
