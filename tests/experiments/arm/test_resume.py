"""Rewinding a run to a checkpoint: which one, of which run, and what the folder holds then.

Runs that are really killed: tests/trl/test_survival.py and tests/nightly/strikes.py.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from composed import composed_arm
from steps_on_disk import write_steps

from analysis import read
from experiments.arm import resume
from experiments.arm.validate import check_checkpoints
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.settings.compose import composed
from experiments.settings.config import RunConfig
from experiments.training import checkpoint
from run import remove_unused


def config(*overrides: str) -> RunConfig:
    return composed_arm("das", *overrides)


def save(arm: Path, step: int, settings: RunConfig) -> Path:
    scratch = arm / resume.SCRATCH
    scratch.mkdir(parents=True)
    (scratch / "model.safetensors").write_bytes(b"weights")
    checkpoint.seal(
        scratch, arm / resume.CHECKPOINTS, step, {**resume.identity(settings), "policy": "digest", "data": "digest"}
    )
    return checkpoint.step_folder(arm / resume.CHECKPOINTS, step)


def test_the_newest_checkpoint_that_every_arm_completed(tmp_path: Path) -> None:
    arms = {tmp_path / name: composed_arm(name) for name in ("none", "das")}
    notes: list[str] = []
    assert resume.newest(arms, notes.append) == 0
    for arm, settings in arms.items():
        write_steps(arm, 24)
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


def test_a_run_goes_on_with_other_free_settings_and_with_as_many_processes(tmp_path: Path) -> None:
    write_steps(tmp_path, 8)
    save(tmp_path, 8, config())
    assert resume.newest({tmp_path: config("wandb=off", "checkpoint.every=4")}, print) == 8
    with pytest.raises(UserError, match=r"engine\.processes"):
        resume.newest({tmp_path: config("engine.processes=2", "task.lock_step=false")}, print)


@pytest.mark.parametrize("setting", ["train_once=true", "train=false", "recorded=r.jsonl"])
def test_an_arm_that_does_not_train_cannot_go_on_training(setting: str, tmp_path: Path) -> None:
    write_steps(tmp_path, 8)
    save(tmp_path, 8, config(f"task.{setting}"))
    with pytest.raises(UserError, match=rf"task\.{setting.split('=')[0]}"):
        resume.newest({tmp_path: config()}, print)
    assert resume.newest({tmp_path: config(f"task.{setting}")}, print) == 8


def test_the_folder_goes_back_to_the_step(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1 / step} for step in range(1, 6)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(text + '{"step": 6, "lo')  # torn by a kill
    rollouts = tmp_path / "rollouts"
    rollouts.mkdir()
    kept = ["step_00004.jsonl.gz", "step_00004.timeline.json.gz"]
    kept.append("notes of the user.txt")
    for name in (*kept, "step_00005.jsonl.gz", "step_00006.jsonl.gz.77.tmp"):
        (rollouts / name).touch()
    (tmp_path / "engines.jsonl").write_text(text)
    save(tmp_path, 4, config())
    save(tmp_path, 5, config())
    (tmp_path / resume.SCRATCH / "checkpoint-6").mkdir(parents=True)
    assert resume.rewind(tmp_path, 4) == rows[:4] == read.metrics(tmp_path)
    assert sorted(path.name for path in rollouts.iterdir()) == sorted(kept)
    assert read.lines(tmp_path / "engines.jsonl") == rows[:4]
    assert checkpoint.steps(tmp_path / resume.CHECKPOINTS) == [4]
    assert not (tmp_path / resume.SCRATCH).exists()


def test_accumulated_steps_may_share_a_generation() -> None:
    check_checkpoints(config("+trainer.steps_per_generation=4", "+trainer.gradient_accumulation_steps=2"))


def test_the_command_that_resumes_names_what_is_not_taken_from_the_folder(tmp_path: Path) -> None:
    resume.remember(tmp_path, ["arms=[none,das]", "reward.function=mine:reward"])
    assert resume.hint(tmp_path) == "", "there is no checkpoint"
    (tmp_path / "arms" / "das" / resume.CHECKPOINTS / "step_00001").mkdir(parents=True)
    assert resume.hint(tmp_path) == f"; to resume: python run.py reward.function=mine:reward resume={tmp_path}"


def test_a_lock_of_another_run_stays(tmp_path: Path) -> None:
    """The folder of a run that goes on was deleted, and another run began there."""
    folder = tmp_path / "run"
    with ExitStack() as other:
        with resume.hold(folder):
            shutil.rmtree(folder)
            other.enter_context(resume.hold(folder))
        with pytest.raises(UserError), resume.hold(folder):
            pass


def test_of_many_processes_one_is_in_the_folder(tmp_path: Path) -> None:
    """Each removes its lock, and the folder if it is empty, as a run does whose input was refused."""
    folder, inside, most, entered = tmp_path / "run", [0], [0], [0]

    def enter() -> None:
        for _ in range(100):
            with suppress(UserError), resume.hold(folder):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                entered[0] += 1
                time.sleep(0)
                inside[0] -= 1
            remove_unused(folder)

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, inside) == ([1], [0])
    assert entered[0] > 0
    assert not folder.exists()


def test_a_run_that_was_killed_before_it_began_starts_anew(tmp_path: Path) -> None:
    """It has overrides.json and nothing else: the policy was being made."""
    resume.remember(tmp_path, ["task=train"])
    assert resume.newest({tmp_path: config()}, print) == 0
    assert resume.rewind(tmp_path, 0) == []
    resume.announce(tmp_path, 0, Progress(1))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def torn_row(path: Path) -> None:
    path.write_text(path.read_text()[:-4])


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("rollouts/step_00012.jsonl.gz", cut_short, "rollout of step 12"),
        ("metrics.jsonl", torn_row, "ends with step 15"),
    ],
)
def test_a_checkpoint_behind_a_damaged_step_is_not_used(
    tmp_path: Path, name: str, damage: Callable[[Path], None], reason: str
) -> None:
    write_steps(tmp_path, 16)
    for step in (8, 16):
        save(tmp_path, step, config())
    notes: list[str] = []
    assert resume.newest({tmp_path: config()}, notes.append) == 16
    damage(tmp_path / name)
    assert resume.newest({tmp_path: config()}, notes.append) == 8
    assert reason in notes[0]
    assert len(notes) == 1
    shutil.rmtree(tmp_path / resume.CHECKPOINTS / "step_00008")
    with pytest.raises(UserError, match=reason):
        resume.newest({tmp_path: config()}, notes.append)


def test_a_run_started_again_in_its_folder_goes_on(tmp_path: Path) -> None:
    """A cluster that starts a job again repeats its command."""
    mine = ["task=train", "seed=3"]
    here = f"hydra.run.dir={tmp_path}"
    assert not resume.goes_on(composed([here, *mine]))
    resume.remember(tmp_path, [here, *mine])
    assert resume.goes_on(composed([*mine[::-1], here]))
    again = resume.recall(tmp_path, mine)
    assert again.config.resume == str(tmp_path), "else its steps would be appended to those that are there"
    for other in (["task=train", "seed=4"], ["task=compare", "seed=3"]):
        with pytest.raises(UserError, match="resume="):
            resume.goes_on(composed([here, *other]))


def test_a_task_that_cannot_be_resumed_does_not_add_to_a_run(tmp_path: Path) -> None:
    (tmp_path / "meta.json").touch()
    for task in ("rollout", "evaluate", "bench_drafter"):
        with pytest.raises(UserError, match=f"task={task}"):
            resume.goes_on(composed([f"task={task}", f"hydra.run.dir={tmp_path}"]))
    store = composed(["task=reproduce", f"hydra.run.dir={tmp_path}"])
    assert not resume.goes_on(store), "a store of several runs"


def test_the_task_of_a_folder_is_fixed(tmp_path: Path) -> None:
    resume.remember(tmp_path, ["task=train"])
    with pytest.raises(UserError, match="task=compare"):
        resume.recall(tmp_path, [f"resume={tmp_path}", "task=compare"])


def test_the_command_line_is_remembered(tmp_path: Path) -> None:
    resume.remember(tmp_path, ["task=train", "seed=3", "arms=[none,das]"])
    again = resume.recall(tmp_path, [f"resume={tmp_path}", "seed=4"])
    assert (again.config.task.name, again.config.seed, again.config.resume) == ("train", 4, str(tmp_path))
    assert "arms=[none,das]" in again.overrides


def test_a_run_without_a_checkpoint_is_emptied_while_it_is_locked(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "metrics.jsonl").write_text("{}\n")

    def needed() -> bool:
        with pytest.raises(UserError), resume.hold(tmp_path):
            pass
        return False

    resume.start_again(tmp_path, unless=needed)
    assert not list(tmp_path.iterdir())
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    resume.start_again(tmp_path, unless=lambda: True)
    assert (tmp_path / "metrics.jsonl").exists()
    with resume.hold(tmp_path), pytest.raises(UserError):
        resume.start_again(tmp_path, unless=lambda: False)


def test_code_that_a_folder_names_is_named_again(tmp_path: Path) -> None:
    """Otherwise a folder of somebody else could run it. The reward is no setting that its run may change."""
    mine = ["task=train", "reward=own", "reward.function=mine:f", "cluster=ray", "cluster.address=host:6379"]
    resume.remember(tmp_path, mine)
    with pytest.raises(UserError, match=r"reward\.function=mine:f"):
        resume.recall(tmp_path, [f"resume={tmp_path}", "wandb=off"])
    again = resume.recall(tmp_path, [f"resume={tmp_path}", "reward.function=mine:f"])
    assert again.config.reward.function == "mine:f"
    resume.recall(tmp_path, mine)  # the command itself, started again in its folder
    resume.remember(tmp_path, ["+vary.budget.name=[none,'mine.own:B']"])
    with pytest.raises(UserError, match=r"vary\.budget\.name=mine\.own:B"):
        resume.recall(tmp_path, [f"resume={tmp_path}"])


def test_no_run_goes_on_through_a_link(tmp_path: Path) -> None:
    run = tmp_path / "run"
    logs = run / "arms" / "das" / "wandb" / "offline-run-1"
    logs.mkdir(parents=True)
    (logs / "debug.log").symlink_to("/root/.cache/wandb/logs/core-debug.log")
    (tmp_path / "link").symlink_to(run)
    resume.remember(run, ["task=train"])
    resume.recall(tmp_path / "link", [])
    (run / "arms" / "none").symlink_to(tmp_path)
    with pytest.raises(UserError, match="arms/none"):
        resume.recall(run, [f"resume={run}"])
