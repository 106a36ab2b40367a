"""The queue of rollouts beside a training, against a slow simulation of every millisecond."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.sections.nemo_rl import Times, exposed_times, hidden_share

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


def test_without_lag_all_is_exposed_and_with_lag_1_the_shorter_is_hidden() -> None:
    rollouts, trains = [3.0] * 10, [2.0] * 10
    assert exposed_times(rollouts, trains, 0) == rollouts
    assert hidden_share(rollouts, rollouts, trains) == 0
    waits = exposed_times(rollouts, trains, 1)
    assert waits[0] == 3
    assert waits[1:] == [1] * 9
    assert hidden_share(waits, rollouts, trains) == pytest.approx(1)
    waits = exposed_times(trains, rollouts, 1)  # the training takes longer
    assert hidden_share(waits, trains, rollouts) == pytest.approx(1)


def test_a_longer_lag_evens_out_what_varies() -> None:
    rng = np.random.default_rng(0)
    rollouts, trains = rng.exponential(1, 200).tolist(), [1.1] * 200
    shares = [hidden_share(exposed_times(rollouts, trains, lag), rollouts, trains) for lag in (0, 1, 2, 4)]
    assert shares[0] == pytest.approx(0)
    assert 0.1 < shares[1] < shares[2] < shares[3] < 1


def test_times_at_a_lag_follow_from_those_of_lag_0() -> None:
    alone = Times([2.9] * 6, [3.0] * 6, [2.0] * 6)
    assert (alone.exposed, alone.step, alone.hidden) == (3, 5, pytest.approx(0, abs=0.1))
    ahead = alone.at_lag(1)
    assert (ahead.exposed, ahead.step, ahead.hidden) == (1, 3, pytest.approx(1))
