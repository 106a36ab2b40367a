"""task=kill_test damages files of a run, and leaves a checkpoint from which the run can go on."""

import gzip
import random
import subprocess
from pathlib import Path

import pytest

from das.files import add_rows, write_bytes
from experiments.harness.resume import CHECKPOINTS, whole_steps
from experiments.run.errors import CheckpointError
from experiments.run.run_folder import responses_file, write_timeline
from experiments.tasks import kill_test
from experiments.tasks.kill_test import damage
from experiments.training import checkpoint

STEPS = (1, 2, 3)


def make_arm(folder: Path) -> None:
    """An arm of three steps with checkpoints of the last two."""
    (folder / "rollouts").mkdir(parents=True)
    for step in STEPS:
        write_bytes(responses_file(folder, step), gzip.compress(b'{"problem_id": "p"}\n', mtime=0))
        write_timeline(folder, step, {"time_s": [0.1]})
        add_rows(folder / "metrics.jsonl", [{"step": step}])
    for step in STEPS[1:]:
        scratch = folder / "scratch"
        scratch.mkdir()
        (scratch / "weights").write_bytes(bytes(range(200)))
        checkpoint.seal(scratch, folder / CHECKPOINTS, step, {"config": {}})


def usable(folder: Path, step: int) -> bool:
    try:
        checkpoint.verify(folder / CHECKPOINTS, step)
    except CheckpointError:
        return False
    return whole_steps(folder)[0] >= step


def test_damage_leaves_the_older_checkpoint_usable(tmp_path: Path) -> None:
    kinds = set()
    for seed in range(30):
        arms = [tmp_path / f"{seed}" / "arms" / name for name in ("none", "das")]
        for arm in arms:
            make_arm(arm)
        damage(tmp_path / f"{seed}", random.Random(seed))
        assert all(usable(arm, 2) for arm in arms)
        torn = any(b'{"step": \n' in (arm / "metrics.jsonl").read_bytes() + b"\n" for arm in arms)
        kinds.add((torn, all(usable(arm, 3) for arm in arms)))
    assert kinds == {(True, True), (False, False)}  # a torn row costs nothing, other damage costs the newest checkpoint


def test_a_run_that_has_not_begun_is_left_alone(tmp_path: Path) -> None:
    damage(tmp_path, random.Random(0))
    assert not list(tmp_path.iterdir())


def test_a_run_that_ends_before_its_strike_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kill_test, "start", lambda *given: subprocess.Popen(["true"], stderr=subprocess.PIPE, text=True)
    )
    for kind in ("run", "parent", "arm"):
        kill = kill_test.kill_once(kind, [], tmp_path, 1, random.Random(0))
        assert "it ended before the strike" in kill.wrong
