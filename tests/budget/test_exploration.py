"""Controls and trials cost a small share of the time."""

import numpy as np

from das.budget.exploration import SHARE, Allowance


def passes_of_tests(new: bool) -> list[int]:
    """Passes of 1 s. The ones that are tests, which cost half a second each and show something new or nothing."""
    allowance, at = Allowance(), []
    for i in range(3000):
        if allowance.seconds(i) > 0.5:
            at.append(i)
            allowance.spent(i, new)
    return at


def test_tests_cost_their_share_and_less_while_they_show_nothing_new() -> None:
    surprising, calm = passes_of_tests(new=True), passes_of_tests(new=False)
    assert 0.8 * SHARE * 3000 < 0.5 * len(surprising) <= SHARE * 3000
    assert len(calm) < len(surprising) / 4
    assert np.diff(calm).max() <= 2**3 * 0.5 / SHARE + 2


def test_tests_in_vain_become_rare_until_one_shows_something_new() -> None:
    allowance, at = Allowance(), []
    for i in range(2000):
        if allowance.due(i) and allowance.seconds(i) > 0.1:
            at.append(i)
            allowance.spent(i, new=False, pause=8)
    gaps = np.diff(at)
    assert gaps[-1] > 10 * gaps[0]
    allowance.spent(2000, new=True, pause=8)
    assert allowance.due(2000)


def test_a_test_that_is_too_expensive_is_thought_of_ever_less_often() -> None:
    allowance, at = Allowance(), []
    for i in range(2000):
        if allowance.due(i):
            at.append(i)
            allowance.put_off(i, pause=8)
    assert np.diff(at).tolist()[:4] == [8, 16, 32, 64]
    assert allowance.seconds(2000) == SHARE * 2000  # it saves up meanwhile
