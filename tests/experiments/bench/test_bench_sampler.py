"""The tax of task=bench_sampler: whose share of a decode step is whose."""

import pytest

from experiments.bench.sampler import taxes


def test_our_share_is_what_vllms_own_drafter_does_not_cost() -> None:
    milli = {
        "stock": [2.0, 3.0, 2.0],
        "ngram": [2.1, 3.1, 2.4],
        "keyed": [1.9, 2.9, 1.9],
        "never_drafting": [2.15, 3.1, 2.5],
    }
    tax = taxes({arm: [1e-3 * value for value in values] for arm, values in milli.items()}, own_code=[2e-5, 1e-5, 3e-5])
    medians = [tax[part]["median"] for part in ("whole", "vllm", "difference", "own_code")]
    assert medians == pytest.approx([250, 100, 150, 20])
    assert tax["difference"]["low"] == pytest.approx(125)
    assert tax["difference"]["high"] == pytest.approx(175)
