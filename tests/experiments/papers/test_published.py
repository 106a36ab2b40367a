"""The papers' replays that need no recorded traces, and parts of DAS's replay whose answers are known."""

import json
from pathlib import Path

import pytest
from composed import composed_run

from experiments.papers.das_drafts import seen_before
from experiments.papers.efficient_ladder import climb, known_rates, rising
from experiments.run.errors import CONFIGS, UserError
from experiments.simulate.workload import workload
from experiments.tasks import reproduce

PUBLISHED = json.loads((CONFIGS.parent / "experiments" / "papers" / "published.json").read_text())


def test_reproduce_nemo_rl(tmp_path: Path) -> None:
    """Also as a part of the report of everything, which says where the paper's numbers are from."""
    reproduce.run(composed_run("task=reproduce", "paper=nemo_rl"), [], str(tmp_path / "run"))
    report = (tmp_path / "run" / "nemo_rl" / "report.md").read_text()
    assert "| 2.72 / 1.7x | 2.72 / 1.70x" in report
    assert "| 6.49 / 2.22x | 6.51 / 2.22x" in report
    assert (tmp_path / "run" / "nemo_rl" / "nemo_heatmap.png").exists()
    first, *others = reproduce.replayed(tmp_path / "run", "nemo_rl", tmp_path)
    assert first.setting.startswith("The paper's numbers are second-hand")
    assert not any("second-hand" in section.setting for section in others)


def test_ladder_climbs_as_published() -> None:
    data = PUBLISHED["er_ladder"]["data"]
    ends = {}
    for name, observed in data["transitions"].items():
        rungs, moves = climb(data, rising(known_rates(data, name)))
        assert [move["to"] for move in moves] == [move["to"] for move in observed]
        for ours, theirs in zip(moves, observed, strict=True):
            assert ours["before"] == pytest.approx(theirs["tau_before"], abs=0.05)
        ends[name] = rungs[-1]
    assert list(ends.values()) == [11, 9, 5]


def test_similarity_counts_runs_of_tokens() -> None:
    past = workload(["a", "b"], [[1, 2, 3, 4], [9, 9, 9, 9]])
    assert seen_before(workload(["a"], [[1, 2, 3, 7]]), past, 2) == pytest.approx(2 / 3)
    assert seen_before(workload(["a", "b"], [[1, 2, 3, 4], [1, 2, 3, 4]]), past, 2) == pytest.approx(1 / 2)
    with pytest.raises(UserError, match="past one"):
        seen_before(workload(["c"], [[1, 2]]), past, 2)
