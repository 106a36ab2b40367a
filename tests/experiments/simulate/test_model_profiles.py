"""The file of acceptances: its rates agree with the tokens per pass that were measured or published beside them."""

import pytest

from experiments.simulate.model_profiles import read_profiles

PROFILES = read_profiles()


@pytest.mark.parametrize("name", PROFILES)
def test_rates_sum_up_to_tau(name: str) -> None:
    """tau = 1 + sum of the products of the rates. Responses end amid drafts, so measured values are a little lower."""
    acceptance = PROFILES[name]
    assert acceptance.basis in ("measured", "published")
    assert acceptance.source
    for tokens, tau in acceptance.tau.items():
        assert acceptance.profile(tokens).tau == pytest.approx(tau, rel=0.04)
        rates = (*acceptance.rates, *[acceptance.rates[-1]] * tokens)
        closed, reach = 1.0, 1.0
        for rate in rates[:tokens]:
            reach *= rate
            closed += reach
        assert acceptance.profile(tokens).tau == pytest.approx(closed)


def test_published_and_measured_stand_beside_each_other() -> None:
    assert {"w4", "w8", "eagle3"} <= {name for name, row in PROFILES.items() if row.basis == "measured"}
    assert {"w4_published", "eagle3_published"} <= {name for name, row in PROFILES.items() if row.basis == "published"}
