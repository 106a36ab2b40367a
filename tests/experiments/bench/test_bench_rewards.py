"""The counts of task=bench_rewards on answers whose verdicts are known."""

from experiments.bench import rewards as bench_rewards
from rewards.maths import MathsReward


def test_gold_counts() -> None:
    maths = MathsReward(1, 8.0)
    counts = bench_rewards.judge_golds(maths, ["1", "0.5", "\\frac{1}{2}", "x+1", "", "x+2"], 3)
    maths.close()
    assert (counts["right"], counts["empty"], counts["wrong"]) == (5, 1, [])
    assert all(one["missed"] == 0 for one in counts["permuted"])
    equal = {frozenset(pair) for one in counts["permuted"] for pair in one["found_equal"]}
    assert equal <= {frozenset(["0.5", "\\frac{1}{2}"])}
