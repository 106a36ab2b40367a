"""task=advise on made-up rollouts: its sample, its numbers, its one line, its refusals."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from composed import composed_run
from made_inputs import write_run
from steps_on_disk import json_lines

from experiments.simulate.times import Drafting, Times
from experiments.simulate.workload import workload
from experiments.tasks import advise
from experiments.tasks.advise import Case, ChosenTimes, sample


def test_advise_samples_problems_wherever_they_were() -> None:
    """Epochs may have different orders: each sampled step has every chosen problem once, oldest groups first."""
    steps = [
        workload([p, p, q, q], [[i], [i], [i], [i]]) for i, (p, q) in enumerate([("a", "b"), ("c", "d"), ("a", "c")])
    ]
    sampled = sample(steps, 100, 100)
    assert [work.problems for work in sampled] == [("a", "a", "c", "c"), ("a", "a", "c", "c")]
    assert [work.tokens.tolist() for work in sampled] == [[0, 0, 1, 1], [2, 2, 2, 2]]
    assert {p for work in sample(steps, 4, 100) for p in work.problems} == {"a"}
    assert {p for work in sample(steps, 100, 3) for p in work.problems} == {"a"}  # more would not fit the engine
    assert [work.problems for work in sample(steps, 100, 1)] == [("a",), ("a",)]


def test_advise_writes_a_page(tmp_path: Path) -> None:
    write_run(tmp_path / "mine", 4)
    overrides = [f"task.rollouts={tmp_path / 'mine'}", "task.engines=2", "task.batch=64", "task.max_tokens=200"]
    overrides += ["task.visits=1"]
    advise.run(composed_run("task=advise", *overrides), [], str(tmp_path / "out"))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["arms"].keys() == {"stock", "suffix-like", "das", "das, fixed 16"}
    das = result["arms"]["das"]
    assert das["rollout_change"] < das["step_change"] < 0
    assert das["low_s"] <= das["rollout_s"] <= das["high_s"]
    assert result["change_over_visits"] == result["changes_by_step"][0]
    page = (tmp_path / "out" / "advice.html").read_text()
    assert "For contexts of 350 tokens" in page
    assert "For its own lengths" in page
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page.replace("http://www.w3.org", "")


def test_advice_by_hand(tmp_path: Path) -> None:
    """Numbers that can be computed on paper: waiting requests, Amdahl's law, how many live requests drafts pay for."""
    rows = [{"problem_id": str(i), "step": s, "response_ids": [7] * 100} for s in (1, 2) for i in range(4)]
    (tmp_path / "mine.jsonl").write_text(json_lines(rows))
    # A pass takes 10 ms up to 32 tokens, then time in proportion to its tokens. 128 requests per engine, 32 at once.
    settings = [
        "task.engines=2",
        "task.batch=256",
        "task.max_num_seqs=32",
        "task.prompt=0",
        "task.draft_us=0",
        "task.rest_s=6",
    ]
    settings += [f"task.rollouts={tmp_path / 'mine.jsonl'}", "task.step_ms=[[1,10],[32,10],[3200,1000]]"]
    advise.run(composed_run("task=advise", *settings), [], str(tmp_path / "out"))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    none, das = result["arms"]["none"], result["arms"]["das"]
    assert none["rollout_s"] == pytest.approx(4 * 100 * 10e-3)  # four waves of 100 passes
    assert none["step_s"] == pytest.approx(4 + 6)
    assert das["step_s"] == pytest.approx(das["rollout_s"] + 6)
    assert das["step_change"] == pytest.approx(das["rollout_change"] * 0.4)
    gains = {live: gain for live, gain, _ in result["speedup_by_live"]}
    # Nearly every drafted token is right. With 8 requests some 3 for each are free; from 32 on every token costs.
    assert gains[1] > 12
    assert 3.3 < gains[8] < 4.1
    assert 0.9 < gains[32] < 1.03
    assert gains[1024] == pytest.approx(gains[64], rel=0.01)
    assert result["pays_up_to"] == 24
    assert result["advice"].startswith("Do not turn it on: ")  # all 32 requests are live until the end
    assert "up to about 24 live requests" in result["advice"]


@pytest.mark.parametrize(
    ("visits", "change"),
    [
        (0.5, -0.1),  # each problem at most once
        (1, -0.1),
        (1.5, -3 / 20),  # 10 s and half of 20 s without drafts; 9 and half of 16 with them
        (2, -5 / 30),
        (4, -13 / 70),  # the third and fourth like the second
    ],
)
def test_the_change_over_visits_by_hand(visits: float, change: float) -> None:
    plain: list[Any]
    drafted: list[Any]
    plain, drafted = ([SimpleNamespace(rollout_s=seconds) for seconds in times] for times in ((10, 20), (9, 16)))
    assert advise.change_over_visits(drafted, plain, visits) == pytest.approx(change)


@pytest.mark.parametrize(
    ("change", "high", "starts"),
    [(-0.3, -0.1, "Turn it on"), (-0.3, 0.2, "Do not turn it on yet: "), (-0.01, 0.0, "Do not turn it on: ")],
)
def test_the_line_follows_from_the_change_and_from_the_worst_that_it_may_be(
    change: float, high: float, starts: str
) -> None:
    das = {"rollout_change": change, "high_change": high, "low_change": change - 0.1, "step_change": change / 2}
    assert advise.advice({**das, "tokens_per_pass": 1.5}, 64, 16, "none").startswith(starts)
    assert advise.pays_up_to([(1, 2.0), (2, 1.03), (4, 1.0), (8, 1.5)]) == 2


def test_the_break_even_is_what_a_pass_with_drafts_costs() -> None:
    """Drafts of one token, right half of the time: a request emits 1.5 tokens in a pass of 3 + .3 * live ms more."""
    das = Times(Drafting(10e-3, 0.0, 3e-3, 0.3e-3))
    case = Case([workload(["p"], [[1] * 10])], ChosenTimes(das, None, ""), 1.0, 64, 10)
    gains = advise.Accepted(np.array([1.5]), np.array([1.0]))
    assert advise.break_even(gains, case, 10) == (10, pytest.approx(1.6), 1.5)
    faster = replace(case, times=ChosenTimes(das, Times(Drafting(8e-3, 0.0, 0.0, 0.0)), ""))
    assert advise.break_even(gains, faster, 10) == (10, pytest.approx(2.0), 1.5)
