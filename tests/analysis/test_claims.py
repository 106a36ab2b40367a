"""What the claims of the report follow from: the queue of rollouts beside a training, against a slow simulation of
every millisecond; when a toggle switches; what meets a claim."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.report import MET, NO_SIZE, NOT_MET, UNDECIDED, Ordering, Size, summary, verdict_classes
from analysis.sections.efficient_rollout import follows_rule, stays_on, switch
from analysis.sections.nemo_rl import Times, exposed_times

TIMES = st.lists(st.integers(1, 30), min_size=1, max_size=8)


def ticks(rollouts: list[int], trains: list[int], lag: int) -> list[int]:
    """What the trainer waits for each step, by letting the clock tick."""
    waits = [0] * len(trains)
    done = step = 0  # finished rollouts; the step that the trainer is in
    left_of_rollout, left_of_train = rollouts[0], 0
    training = False
    while step < len(trains):
        if not training and done > step:
            training, left_of_train = True, trains[step]
            continue
        if not training:
            waits[step] += 1
        engine_busy = done < len(rollouts) and done <= step + lag  # rollout `done` was submitted
        if engine_busy:
            left_of_rollout -= 1
        if training:
            left_of_train -= 1
        if engine_busy and not left_of_rollout:
            done += 1
            left_of_rollout = rollouts[done] if done < len(rollouts) else 0
        if training and not left_of_train:
            training, step = False, step + 1
    return waits


@given(TIMES, st.integers(0, 4), st.randoms(use_true_random=False))
def test_waits_are_those_of_a_ticking_clock(rollouts: list[int], lag: int, random: object) -> None:
    trains = [random.randrange(1, 30) for _ in rollouts]  # type: ignore[attr-defined]
    assert exposed_times(rollouts, trains, lag) == ticks(rollouts, trains, lag)


def test_times_at_a_lag_follow_from_those_of_lag_0() -> None:
    alone = Times([2.9] * 6, [3.0] * 6, [2.0] * 6)
    assert (alone.exposed, alone.step, alone.hidden) == (3, 5, pytest.approx(0, abs=0.1))
    ahead = alone.at_lag(1)
    assert (ahead.exposed, ahead.step, ahead.hidden) == (1, 3, pytest.approx(1))
    assert Times([2.0] * 6, [2.0] * 6, [3.0] * 6).at_lag(1).hidden == pytest.approx(1), "the training takes longer"


def test_trials_and_controls_are_not_the_switch() -> None:
    """A pass with drafts while the toggle is off, then one without while it is on."""
    trace = {"step_live": [2] * 20, "step_tokens": [2, 4, 2, 2, 2, 4, 4, 4, 4, 4, 4, 2, *[4] * 8]}
    assert switch(trace) == (5 / 20, 2)
    assert stays_on(trace)
    trace["step_tokens"] = [2, 4, 4, 2, 2] * 4
    assert not stays_on(trace)


def test_the_ladder_climbs_after_two_accepted_rollouts_and_not_before() -> None:
    assert follows_rule([5, 5, 7, 7, 9], [0.98] * 5)
    assert follows_rule([5, 0, 5, 7, 0], [0.98, 0.0, 0.95, 0.9, 0.0]), "the toggle was off in two rollouts"
    assert not follows_rule([5, 0, 7], [0.98, 0.0, 0.95])
    assert not follows_rule([5, 5, 7], [0.98, 0.5, 0.98])


def test_a_claim_is_met_by_order_and_by_size() -> None:
    def claim(met: bool | None, ours: float | None) -> Ordering:
        return Ordering("das is faster", met, "in 3 of 4 steps", Size(13.8, ours, " % less"))

    off, close, alone, no, unknown = (
        claim(*of) for of in ((True, 35.9), (True, 13.0), (True, None), (False, -5.0), (None, 13.0))
    )
    assert [each.verdict for each in (close, alone, no, unknown)] == [MET, NO_SIZE, NOT_MET, UNDECIDED]
    assert off.verdict not in (MET, NO_SIZE)
    assert off.cells[1:4] == ["13.8 % less", "35.9 % less", "2.60"]
    order, size = summary([off, close, alone, no, unknown])
    assert "3 of 5" in order
    assert "1 are met" in size
    assert len(summary([alone])) == 1, "without a number of the paper"
    assert len(set(verdict_classes([off, close, alone, no]).values())) == 4
