"""Evaluations during a training change no bit of it, are equal in all arms, and survive a restart."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import EVALUATED
from scripts import run_script

from analysis import compare as curves
from analysis import read
from analysis.evaluations import evaluations
from analysis.metrics import timeless

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def plain(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The arm das alone, without evaluations."""
    folder = tmp_path_factory.mktemp("plain")
    settings = [setting for setting in EVALUATED if not setting.startswith("eval.")]
    where = [f"policy.path={repetitive_policy}", "wandb=off", f"hydra.run.dir={folder}"]
    run_script("run.py", "task=train", "arm=das", *settings, *where)
    return folder


def rows_without_times(folder: Path, *others: str) -> list[dict[str, Any]]:
    return [{key: row[key] for key in row if key not in others} for row in timeless(read.metrics(folder))]


def test_the_training_is_the_same_without_evaluations(evaluated: Path, plain: Path) -> None:
    das = evaluated / "arms" / "das"
    assert read.final(das) == read.final(plain)
    assert rows_without_times(das, "eval") == rows_without_times(plain)
    assert sum(row["drafted"] for row in read.metrics(das)) > 0
    ours, theirs = np.load(das / "history.npz"), np.load(plain / "history.npz")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs.files)
    for name in ("rng_state.pth", "learned.npz", "generation.npz", "optimizer.pt", "trainer_state.json"):
        saved, other = (folder / "checkpoints" / "step_00004" / name for folder in (das, plain))
        if saved.suffix == ".npz":
            assert all(np.array_equal(np.load(saved)[key], np.load(other)[key]) for key in np.load(other).files)
        else:
            assert saved.read_bytes() == other.read_bytes(), name


def test_evaluations_are_equal_in_all_arms(evaluated: Path, tmp_path: Path) -> None:
    folder, printed = evaluated, (evaluated / "printed").read_text()
    result = read.result(folder)
    assert result["identical"]["das"]["eval"] is True
    assert "optimizer state, evaluations)" in printed
    none, das = (evaluations(read.metrics(folder / "arms" / name)) for name in ("none", "das"))
    assert [each["step"] for each in das] == result["eval"]["das"]["step"] == [0, 2, 4, 5]
    assert len({each["completions_digest"] for each in das}) == 4  # other weights, other noise
    for one, other in zip(none, das, strict=True):
        for key in ("completions_digest", "correct", "pass_at_k", "tokens", "length_mean", "truncated"):
            assert one[key] == other[key]
    assert sum(each["drafted"] for each in none) == 0
    assert all(each["tokens"] > each["passes"] for each in das)
    assert result["eval"]["das"]["pass_at_k"].keys() == {"1", "2", "3"}
    assert "eval   0/5  none          pass@1 0.000" in printed

    altered = tmp_path / "altered"
    shutil.copytree(folder, altered)
    rows = read.metrics(altered / "arms" / "das")
    rows[1]["eval"][0]["completions_digest"] = "other"
    (altered / "arms" / "das" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    from analysis.arms import compare_arms, identity_verdict

    verdict = compare_arms(altered, ["none", "das"])
    assert verdict["identical"]["das"]["eval"] is False
    assert "NO: eval differ, first at step 2" in identity_verdict(verdict)


def test_wandb_and_the_curves_hold_evaluations(evaluated: Path, tmp_path: Path) -> None:
    das = evaluated / "arms" / "das"
    wandb_run = str(next((das / "wandb").glob("offline-run-*")))
    (difference,) = curves.compare([str(das), wandb_run], tmp_path / "curves.png", tmp_path / "page.html")
    assert difference.identical is True
    assert "  evaluations              identical" in difference.lines
    assert "Held-out pass@1" in (tmp_path / "page.html").read_text()


def test_a_resumed_training_evaluates_as_if_it_had_not_stopped(evaluated: Path, tmp_path: Path) -> None:
    whole = evaluated
    stopped = tmp_path / "stopped"
    shutil.copytree(whole, stopped)
    for arm in ("none", "das"):
        shutil.rmtree(stopped / "arms" / arm / "checkpoints" / "step_00004")
    run_script("run.py", f"resume={stopped}")
    assert read.result(stopped)["identical"]["das"]["eval"] is True
    for arm in ("none", "das"):
        rows, resumed = (evaluations(read.metrics(folder / "arms" / arm)) for folder in (whole, stopped))
        exact = [[each[key] for key in ("step", "completions_digest", "correct", "tokens")] for each in rows]
        assert exact == [[each[key] for key in ("step", "completions_digest", "correct", "tokens")] for each in resumed]
        assert read.final(whole / "arms" / arm) == read.final(stopped / "arms" / arm)
