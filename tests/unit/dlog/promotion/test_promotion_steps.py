"""The order of the steps of a promotion: every state of both sides, and every crash between two steps."""

# covers: dlog/promotion/steps.py

from __future__ import annotations

import attrs
import pytest

from dlog.errors import LogExistsError, LogMetadataError, PromotionError
from dlog.promotion.record import SourcePhase, SourceRecord, TargetPhase, TargetRecord
from dlog.promotion.steps import Step, next_step, next_undo_step


def source(phase: SourcePhase) -> SourceRecord:
    return SourceRecord("1", "distributedlog://zk1/shop", phase)


def target(phase: TargetPhase, promotion: str = "1") -> TargetRecord:
    return TargetRecord(promotion, "file:///old", phase)


@attrs.define
class Sides:
    """What each step stores; the model of ``nodes``."""

    source: SourceRecord | None = None
    target: TargetRecord | None = None

    def do(self, step: Step) -> None:
        match step:
            case Step.BEGIN:
                self.source = source(SourcePhase.COPYING)
            case Step.CREATE_TARGET:
                self.target = target(TargetPhase.COPYING)
            case Step.COPY:
                self.source = source(SourcePhase.HANDED_OVER)
            case Step.FINISH:
                self.target = target(TargetPhase.ACTIVE)
            case Step.CONCLUDE:
                self.source = source(SourcePhase.DONE)
            case Step.CANCEL_TARGET:
                self.target = target(TargetPhase.UNDOING)
            case Step.REOPEN_SOURCE:
                self.source = source(SourcePhase.UNDOING)
            case Step.DELETE_TARGET:
                self.target = None
            case Step.FORGET:
                self.source = None
        self.check()

    def check(self) -> None:
        here = self.source is None or not self.source.is_closed
        there = self.target is not None and self.target.phase is TargetPhase.ACTIVE
        assert not (here and there), "both sides take records"

    def forward(self) -> Step | None:
        return next_step("log", self.source, self.target, target_exists=self.target is not None)

    def back(self) -> Step | None:
        return next_undo_step("log", self.source, self.target)


def test_the_steps_lead_from_nothing_to_a_log_that_takes_records_at_the_target_only() -> None:
    sides, steps = Sides(), []
    while (step := sides.forward()) is not None:
        steps.append(step)
        sides.do(step)
    assert steps == [Step.BEGIN, Step.CREATE_TARGET, Step.COPY, Step.FINISH, Step.CONCLUDE]


@pytest.mark.parametrize("done", range(4))
@pytest.mark.parametrize("undone", range(5))
def test_a_promotion_is_undone_from_each_step_before_the_target_is_open(done: int, undone: int) -> None:
    sides = Sides()
    for _ in range(done):
        step = sides.forward()
        assert step is not None
        sides.do(step)
    for _ in range(undone):  # a crash of the process that undoes it; the next one begins anew
        if (step := sides.back()) is not None:
            sides.do(step)
            if sides.source is not None:
                with pytest.raises(PromotionError, match="undone"):
                    sides.forward()
    while (step := sides.back()) is not None:
        sides.do(step)
    assert sides == Sides()


def test_an_open_target_is_never_undone() -> None:
    for phase in (SourcePhase.HANDED_OVER, SourcePhase.DONE):
        with pytest.raises(PromotionError, match="cannot be undone"):
            next_undo_step("log", source(phase), target(TargetPhase.ACTIVE))
    with pytest.raises(PromotionError, match="cannot be undone"):
        next_undo_step("log", None, target(TargetPhase.ACTIVE))


def test_copies_without_a_record_at_the_source_are_deleted_by_undoing() -> None:
    # A process that was stopped for long created the log at the target after the promotion was undone.
    sides = Sides(None, target(TargetPhase.COPYING))
    assert sides.back() is Step.CANCEL_TARGET
    sides.do(Step.CANCEL_TARGET)
    assert sides.back() is Step.DELETE_TARGET


def test_a_log_of_the_same_name_at_the_target_is_left_alone() -> None:
    with pytest.raises(LogExistsError):
        next_step("log", None, None, target_exists=True)
    with pytest.raises(LogExistsError):
        next_step("log", source(SourcePhase.COPYING), target(TargetPhase.ACTIVE, "2"), target_exists=True)
    other = target(TargetPhase.COPYING, "2")
    assert next_undo_step("log", source(SourcePhase.COPYING), other) is Step.REOPEN_SOURCE
    assert next_undo_step("log", source(SourcePhase.UNDOING), other) is Step.FORGET


def test_states_that_no_promotion_leaves_are_refused() -> None:
    with pytest.raises(LogMetadataError, match="never handed over"):
        next_step("log", source(SourcePhase.COPYING), target(TargetPhase.ACTIVE), target_exists=True)
    with pytest.raises(LogMetadataError, match="no copy"):
        next_step("log", source(SourcePhase.HANDED_OVER), None, target_exists=False)
