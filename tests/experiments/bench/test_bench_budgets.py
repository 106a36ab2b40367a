"""task=bench_budgets: ratios, refusals."""

import pytest
from omegaconf import OmegaConf

from experiments.bench.budgets.task import measure
from experiments.bench.budgets.workloads import Requests, requests_of
from experiments.run.errors import UserError


def row(arm: str, seconds: float, passes: int, drafted: int) -> dict[str, object]:
    counts = {"passes": passes, "drafted": drafted, "accepted": 1000 - passes}
    return {"arm": arm, "rollout_s": seconds, "tokens": 1000, **counts}


def test_measure_compares_with_no_speculation() -> None:
    rows = []
    for slow in (1.0, 2.0, 1.5):  # a slow machine slows both arms
        rows += [row("none", 0.7 * slow, 1000, 0), row("das", 0.28 * slow, 500, 900)]
    measured = measure(rows, ["none", "das"])
    assert measured["das"]["ratio"] == pytest.approx(0.4)
    assert measured["das"]["quartiles"] == pytest.approx([0.4, 0.4])
    assert measured["das"]["tokens_per_pass"] == 2.0
    assert measured["none"]["ratio"] == 1.0


def test_incomplete_groups_are_refused() -> None:
    config = OmegaConf.create({"trainer": {"num_generations": 8}, "task": {"problems": 8, "steps": 4, "tail": 0.5}})
    assert requests_of(config, 64, hopeless=False) == Requests(
        live=64, siblings=8, problems=8, hopeless=False, tail=0.5
    )
    assert requests_of(config, 16, hopeless=True) == Requests(live=16, siblings=1, problems=64, hopeless=True, tail=0.5)
    with pytest.raises(UserError, match="no multiple"):
        requests_of(config, 12, hopeless=False)


def test_a_tail_shortens_one_request_after_the_other() -> None:
    assert Requests(4, 1, 4, hopeless=False, tail=0.5).longest(100) == [100, 50, 25, 12]
    assert Requests(3, 1, 3, hopeless=False).longest(100) == [100, 100, 100]
    assert Requests(9, 1, 9, hopeless=False, tail=0.1).longest(100)[-1] == 1
