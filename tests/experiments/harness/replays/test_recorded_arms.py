"""Recorded arms at the prices of another machine."""

import json
from pathlib import Path

import pytest
from composed import composed
from made_inputs import write_run
from omegaconf import OmegaConf

from analysis.arms import full_table
from experiments.harness.replays.recorded_arms import derived_ratios


def arms_of(folder: Path, *names: str, **metrics: float) -> dict[str, Path]:
    """Six steps of every arm. metrics: of every step, where they differ from the usual ones."""
    row = {"tokens": 1000, "passes": 500, "draft_s": 0.0, **metrics}
    arms = {name: folder / "arms" / name for name in names}
    for name, path in arms.items():
        write_run(path, 6)
        OmegaConf.save(composed(f"arm={name}", "data.problems=2"), path / "config.yaml")
        (path / "metrics.jsonl").write_text((json.dumps(row) + "\n") * 6)
    return arms


def test_ratios_of_what_can_be_replayed(tmp_path: Path) -> None:
    derived = derived_ratios(arms_of(tmp_path / "free", "none", "das", "ngram"))["h100_7b"]
    cheap, dear = derived["ratio_to_none"], derived["ratio_to_none_dearer"]
    assert cheap.keys() == dear.keys() == {"das"}
    assert 0.2 < cheap["das"] < dear["das"] < 1
    assert derived["source"].endswith("derived, not measured")
    slow = derived_ratios(arms_of(tmp_path / "slow", "none", "das", draft_s=2.0))["h100_7b"]
    assert slow["ratio_to_none"]["das"] > cheap["das"]  # what drafting took in the run counts


@pytest.mark.parametrize(("names", "tokens"), [(("das", "none"), 1000), (("none", "das"), 10**6)])
def test_no_ratios_against_drafts_and_of_huge_runs(tmp_path: Path, names: tuple[str, ...], tokens: int) -> None:
    assert derived_ratios(arms_of(tmp_path, *names, tokens=tokens)) == {}


def test_the_table_marks_them_as_derived() -> None:
    numbers = {"mean": 1.0, "std": 0.0, "n": 1, "overall": 0.5, "first_quarter": 0.0, "last_quarter": 1.0}
    keys = ("rollout_s", "tokens", "tokens_per_pass", "drafted", "accepted", "draft_share", "reward", "tail_share")
    arm = {key: numbers for key in keys}
    times = {"overall": 0.7, "from_second_epoch": 0.6}
    ratios = {"ratio_to_none": {"das": 0.4}, "ratio_to_none_dearer": {"das": 0.55}, "source": "a data sheet"}
    result = {
        "arms": {name: arm for name in ("none", "das", "ngram")},
        "ratio_to_none": {name: {"rollout_s": times, "step_s": {"overall": 0.8}} for name in ("das", "ngram")},
        "derived": {"h100_7b": ratios},
    }
    header, none, das, ngram = full_table(result)
    assert header[-1] == "h100 7b ratio, derived"
    assert (none[-1], das[-1], ngram[-1]) == ("1", "0.400 to 0.550", "-")
    assert not any("derived" in name for name in full_table({**result, "derived": {}})[0])
    assert "50%" in das
