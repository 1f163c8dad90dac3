"""The rules of a group: in the end each log is held, and the numbers of logs are even."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlog.groups.balance import to_claim, to_give_up

LOGS = [f"log{number}" for number in range(12)]
MEMBERS = [f"member{number}" for number in range(6)]


def step(holders: dict[str, str | None], members: list[str], member: str) -> bool:
    """One look of one member; False if it changed nothing."""
    claimed = to_claim(member, holders, members)
    for log in claimed:
        assert holders[log] is None, "a log that is held is never claimed"
        holders[log] = member
    given_up = to_give_up(member, holders, members)
    if given_up is not None:
        assert holders[given_up] == member, "a member gives up what it holds"
        holders[given_up] = None
    return bool(claimed) or given_up is not None


@given(
    st.lists(st.sampled_from(LOGS), min_size=1, unique=True),
    st.lists(st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_after_each_change_of_members_the_logs_are_shared_evenly(
    logs: list[str], generations: list[list[str]], rng: object
) -> None:
    holders: dict[str, str | None] = dict.fromkeys(logs)
    for members in generations:
        for log, holder in holders.items():
            if holder not in members:
                holders[log] = None  # its session is over
        for _ in range(4 * len(logs) + 1):
            order = list(members)
            rng.shuffle(order)  # type: ignore[attr-defined]
            if sum(step(holders, members, member) for member in order) == 0:
                break
        else:
            raise AssertionError("they never come to rest")
        counts = [sum(holder == member for holder in holders.values()) for member in members]
        assert None not in holders.values()
        assert sum(counts) == len(logs)
        assert max(counts) - min(counts) <= 1


def test_a_member_alone_claims_everything() -> None:
    assert sorted(to_claim("a", dict.fromkeys(LOGS), [])) == sorted(LOGS)


def test_only_one_member_gives_up_and_only_one_log() -> None:
    holders = {"1": "a", "2": "a", "3": "b", "4": "b"}
    members = ["a", "b", "c"]
    assert [to_give_up(member, dict(holders), members) for member in members] == ["2", None, None]


def test_the_log_of_another_client_is_left_alone() -> None:
    holders: dict[str, str | None] = {"1": "java", "2": None}
    assert to_claim("a", holders, ["a"]) == ["2"]
    assert to_give_up("a", holders, ["a"]) is None
