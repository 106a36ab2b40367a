"""Rewinding a run to a checkpoint: which one, of which run, and what the folder holds then.

Runs that are really killed: tests/trl/test_survival.py and task=kill_test.
"""

import json
from pathlib import Path

import pytest
from composed import composed_arm
from hydra import initialize_config_dir

from analysis import read
from experiments.harness import resume
from experiments.harness.config import RunConfig
from experiments.harness.validate import check_checkpoints
from experiments.run.errors import CONFIGS, UserError
from experiments.training import checkpoint


def config(*overrides: str, arm: str = "das") -> RunConfig:
    return composed_arm(arm, *overrides)


def save(arm: Path, step: int, settings: RunConfig) -> Path:
    scratch = arm / resume.SCRATCH
    scratch.mkdir(parents=True)
    (scratch / "model.safetensors").write_bytes(b"weights")
    checkpoint.seal(
        scratch, arm / resume.CHECKPOINTS, step, {**resume.identity(settings), "policy": "digest", "data": "digest"}
    )
    return checkpoint.step_folder(arm / resume.CHECKPOINTS, step)


def test_the_newest_checkpoint_that_every_arm_completed(tmp_path: Path) -> None:
    arms = {tmp_path / name: config(arm=name) for name in ("none", "das")}
    notes: list[str] = []
    assert resume.newest(arms, notes.append) == 0
    for arm, settings in arms.items():
        for step in (8, 16):
            save(arm, step, settings)
    save(tmp_path / "none", 24, arms[tmp_path / "none"])  # the other arm was killed before
    assert resume.newest(arms, notes.append) == 16
    assert not notes
    (tmp_path / "das" / resume.CHECKPOINTS / "step_00016" / "model.safetensors").write_bytes(b"weighty")
    assert resume.newest(arms, notes.append) == 8
    assert len(notes) == 1
    assert "checkpoint of step 16 is not used" in notes[0]
    assert "SHA-256" in notes[0]


def test_checkpoints_of_another_run_are_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, 8, config())
    assert resume.newest({tmp_path: config("wandb=off", "checkpoint.every=4")}, print) == 8
    other = config("seed=1", "trainer.learning_rate=0.5", "budget=fixed")
    with pytest.raises(
        UserError, match=r"another run; these differ: .*budget\.name \(marginal there, fixed here\)"
    ) as raised:
        resume.newest({tmp_path: other}, print)
    assert "seed (0 there, 1 here)" in str(raised.value) or "more" in str(raised.value)
    with pytest.raises(UserError, match="1 processes wrote the checkpoints"):
        resume.newest({tmp_path: config("engine.processes=2")}, print)


def test_an_arm_that_does_not_train_cannot_go_on_training(tmp_path: Path) -> None:
    save(tmp_path, 8, config("task.train_once=true"))
    with pytest.raises(UserError, match=r"these differ: task\.train_once \(True there, absent here\)"):
        resume.newest({tmp_path: config()}, print)
    assert resume.newest({tmp_path: config("task.train_once=true")}, print) == 8


def test_the_folder_goes_back_to_the_step(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1 / step} for step in range(1, 6)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 6, "lo')  # torn by a kill
    rollouts = tmp_path / "rollouts"
    rollouts.mkdir()
    kept = ["step_00004.jsonl.gz", "step_00004.timeline.json.gz"]
    for name in (*kept, "step_00005.jsonl.gz", "step_00006.jsonl.gz.tmp"):
        (rollouts / name).touch()
    save(tmp_path, 4, config())
    save(tmp_path, 5, config())
    (tmp_path / resume.SCRATCH / "checkpoint-6").mkdir(parents=True)
    assert resume.rewind(tmp_path, 4) == rows[:4] == read.metrics(tmp_path)
    assert sorted(path.name for path in rollouts.iterdir()) == kept
    assert checkpoint.steps(tmp_path / resume.CHECKPOINTS) == [4]
    assert not (tmp_path / resume.SCRATCH).exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["checkpoint.every=-1"], "checkpoint.every=-1: must be a number from 0"),
        (["checkpoint.keep=1"], "checkpoint.keep=1: must be a number from 2"),
        (["+trainer.num_iterations=3"], "checkpoint.every=8: must be a multiple of 3"),
        (["+trainer.steps_per_generation=4", "checkpoint.every=2"], "checkpoint.every=2: must be a multiple of 4"),
    ],
)
def test_checkpoints_that_could_not_be_resumed(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_checkpoints(config(*overrides))
    check_checkpoints(config("+trainer.steps_per_generation=4", "+trainer.gradient_accumulation_steps=2"))


def test_a_run_that_is_still_running_is_not_resumed(tmp_path: Path) -> None:
    with resume.hold(tmp_path), pytest.raises(UserError, match="still running"):
        resume.hold(tmp_path)
    resume.hold(tmp_path).close()


def test_the_command_line_is_remembered(tmp_path: Path) -> None:
    resume.remember(tmp_path, ["task=train", "seed=3", "arms=[none,das]"])
    with initialize_config_dir(str(CONFIGS), version_base=None):
        again, overrides = resume.recall(tmp_path, [f"resume={tmp_path}", "seed=4"])
        assert (again.task.name, again.seed, again.resume) == ("train", 4, str(tmp_path))
        assert "arms=[none,das]" in overrides
