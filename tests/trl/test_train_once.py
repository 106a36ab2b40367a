"""task.train_once: only the first arm trains, and the others roll out with its weights as if they had trained."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import COMPARED
from scripts import GIVEN_PRICES, run_script

from analysis import compare as curves
from analysis import read
from analysis.metrics import evaluations
from experiments.arm.resume import CHECKPOINTS
from experiments.run.errors import RunFailed
from experiments.training import checkpoint
from experiments.training.train_once import load_weights, write_weights

pytestmark = pytest.mark.slow

ARMS = ("none", "das", "stock")
OF_TRAINING = ("loss", "grad_norm", "learning_rate", "kl", "entropy", "sampling_logp_difference")
EXACT = ("completions_digest", "rewards_digest", "reward", "tokens", "length_mean")
OF_EVALUATION = ("step", "completions_digest", "correct", "pass_at_k", "tokens")


@pytest.fixture(scope="module")
def once(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run COMPARED of three arms, of which only the first trains; and what it printed."""
    folder = tmp_path_factory.mktemp("once")
    # As if it had been killed before the last thing that it does.
    program = (
        "import runpy, sys; from experiments.training import checkpoint; checkpoint.keep_policy = id; "
        "sys.argv[0] = 'run.py'; runpy.run_path('run.py', run_name='__main__')"
    )
    settings = [f"arms=[{','.join(ARMS)}]", "task.train_once=true", f"policy.path={repetitive_policy}", "wandb=off"]
    settings += COMPARED
    return folder, run_script("-c", program, *settings, f"hydra.run.dir={folder}")


def rolled_out(arm: Path) -> list[Any]:
    """What an arm's rollouts and evaluations gave, step by step."""
    return [
        [
            *(row[name] for name in EXACT),
            *([each[name] for name in OF_EVALUATION] for each in evaluations([row])),
            [response["response_ids"] for response in read.rollout(arm, row["step"])],
        ]
        for row in read.metrics(arm)
    ]


def test_arms_that_do_not_train_roll_out_as_if_they_had(once: tuple[Path, str], compared: Path) -> None:
    arms = once[0] / "arms"
    for arm in ("none", "das"):
        assert rolled_out(arms / arm) == rolled_out(compared / "arms" / "das")
    trained = read.final(compared / "arms" / "none")
    assert read.final(arms / "none") == trained, "the first arm trains as it does without train_once"
    for arm in ARMS[1:]:
        assert read.final(arms / arm) == {"final_weights": trained["final_weights"]}
    drafted = [[row["drafted"] for row in read.metrics(folder / "arms" / "das")] for folder in (once[0], compared)]
    assert drafted[0] == drafted[1], "the history learns the same"
    assert sum(drafted[0]) > 0


def test_stock_samples_other_tokens_with_the_same_weights(once: tuple[Path, str]) -> None:
    arms = once[0] / "arms"
    assert rolled_out(arms / "stock") != rolled_out(arms / "none")
    assert "stock: compared in distribution" in once[1]


def test_the_verdict_says_that_there_was_one_training(once: tuple[Path, str], tmp_path: Path) -> None:
    folder, printed = once
    result = read.result(folder)
    assert result["trained"] == "first"
    same = {"completions": True, "rewards": True, "eval": True, "final_weights": True, "first_difference": None}
    assert result["identical"] == {"das": same}
    assert set(result["ratio_to_none"]["das"]) == {"rollout_s"}
    words = "(das against none: completions, rewards, evaluations; weights: trained once)"
    assert f"identical: yes  {words}" in printed

    altered = tmp_path / "altered"
    shutil.copytree(folder, altered)
    rows = read.metrics(altered / "arms" / "das")
    rows[2]["completions_digest"] = "other"
    (altered / "arms" / "das" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    from analysis.arms import compare_arms, identity_verdict

    assert f"NO: completions differ, first at step 3  {words}" in identity_verdict(compare_arms(altered, ARMS[:2]))


def test_rows_and_files_of_an_arm_that_does_not_train(once: tuple[Path, str], compared: Path) -> None:
    folder, _ = once
    rows, trained_rows = (read.metrics(run / "arms" / "das") for run in (folder, compared))
    assert [row.keys() for row in rows] == [row.keys() for row in trained_rows]
    assert all(row[key] is None for row in rows for key in OF_TRAINING)
    assert not any(row[key] is None for row in trained_rows for key in OF_TRAINING if key != "kl")
    assert not list(folder.glob("*.safetensors"))
    trained, rolled = (folder / "arms" / arm / CHECKPOINTS / "step_00002" for arm in ("none", "das"))
    assert (trained / "model.safetensors").read_bytes() == (rolled / "model.safetensors").read_bytes()
    sizes = [(path / "optimizer.pt").stat().st_size for path in (trained, rolled)]
    assert sizes[1] < sizes[0] / 20, "no optimizer state"
    (difference,) = curves.compare(curves.gather([f"{folder}:none", f"{folder}:das"]))
    assert difference.identical is None, "das has no loss"
    assert "  completions              identical" in difference.lines
    assert any(line.startswith("  losses ") and "not recorded in das" in line for line in difference.lines)


@pytest.mark.nightly
def test_a_resumed_run_is_as_if_it_had_not_stopped(once: tuple[Path, str], tmp_path: Path) -> None:
    """One arm has completed one checkpoint less; a run that was killed has left weights."""
    stopped = tmp_path / "stopped"
    shutil.copytree(once[0], stopped)
    shutil.rmtree(stopped / "arms" / "das" / CHECKPOINTS / "step_00003")
    (stopped / "first_arm.safetensors").write_bytes(b"half")
    assert "resuming after step 2" in run_script("run.py", f"resume={stopped}", *GIVEN_PRICES)
    for arm in ARMS:
        assert checkpoint.steps(stopped / "arms" / arm / CHECKPOINTS) == [3]
        assert not (stopped / "arms" / arm / CHECKPOINTS / "step_00003" / checkpoint.OPTIMIZER).exists()
    again = run_script("run.py", f"resume={stopped}", *GIVEN_PRICES)
    assert "resuming after step 3" in again, "its verdict can be made again"
    assert not list(stopped.glob("*.safetensors"))
    assert read.result(stopped)["identical"] == read.result(once[0])["identical"]
    for arm in ARMS[:-1]:
        assert rolled_out(stopped / "arms" / arm) == rolled_out(once[0] / "arms" / arm)
        assert read.final(stopped / "arms" / arm) == read.final(once[0] / "arms" / arm)


@pytest.mark.nightly
def test_rollouts_ahead(repetitive_policy: str, tmp_path: Path) -> None:
    settings = [f"policy.path={repetitive_policy}", "wandb=off", "trainer.lag=1", "eval.every=0"]
    run_script("run.py", *COMPARED, *settings, "task.train_once=true", f"hydra.run.dir={tmp_path}")
    result = read.result(tmp_path)
    assert result["identical"]["das"]["first_difference"] is None
    assert result["identical"]["das"]["completions"]
    assert [row["lag"] for row in read.metrics(tmp_path / "arms" / "das")] == [0, 1, 1]


def test_other_weights_than_the_first_arms_stop_a_run(tmp_path: Path) -> None:
    written = tmp_path / "written"
    write_weights(written, torch.nn.Linear(3, 2), 1)
    load_weights(written, torch.nn.Linear(3, 2), 1)
    with pytest.raises(RunFailed, match="does not hold the first arm's weights of step 2, as it wrote them"):
        load_weights(written, torch.nn.Linear(3, 2), 2)
    data = written.read_bytes()
    damages = (data[:-1] + bytes([data[-1] ^ 1]), "does not hold"), (data[: len(data) // 2], "cannot be read")
    for number, (damaged, words) in enumerate(damages):
        (tmp_path / str(number)).write_bytes(damaged)
        with pytest.raises(RunFailed, match=words):
            load_weights(tmp_path / str(number), torch.nn.Linear(3, 2), 1)
