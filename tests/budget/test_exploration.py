"""Controls and trials cost a small share of the time."""

import numpy as np

from das.budget.exploration import SHARE, Exploration


def test_the_first_passes_carry_no_drafts() -> None:
    exploration = Exploration()
    for _ in range(3):
        assert exploration.control_due(1.0)
        exploration.observe(0.01, drafted=False, error=0.0, usual_error=0.02)
    assert not exploration.control_due(1.0)


def controls(error: float) -> list[int]:
    """Passes of 1 s of which drafts save half. The passes that are controls, whose prediction errs by so much."""
    exploration, at = Exploration(), []
    for i in range(3000):
        due = exploration.control_due(0.5)
        if due:
            at.append(i)
        exploration.observe(1.0, drafted=not due, error=error, usual_error=0.02)
    return at


def test_controls_cost_their_share_and_less_while_they_show_nothing_new() -> None:
    surprising, calm = controls(0.5), controls(0.01)
    assert 0.5 * len(surprising) <= SHARE * 3000 + 3
    assert len(surprising) > 0.8 * SHARE * 3000 / 0.5
    assert len(calm) < len(surprising) / 4
    assert np.diff(calm).max() <= 2**3 * 0.5 / SHARE + 2


def test_trials_in_vain_become_rare() -> None:
    exploration, at = Exploration(), []
    for i in range(2000):
        if exploration.trial_due and exploration.allowance > 0.1:
            exploration.begin_trial(expected=1.1, plain=1.0)
            at.append(i)
            exploration.observe(1.1, drafted=True, error=0.0, usual_error=0.02)
        else:
            exploration.observe(1.0, drafted=i >= 3, error=0.0, usual_error=0.02)
    gaps = np.diff(at)
    assert gaps[-1] > 10 * gaps[0]
    exploration.begin_trial(expected=1.1, plain=1.0)
    exploration.observe(0.5, drafted=True, error=0.0, usual_error=0.02)  # tokens have become cheap
    exploration.observe(9.0, drafted=True, error=0.0, usual_error=0.02)
    assert exploration.trial_due
