"""GRPO on two processes with an engine each (gloo, DDP, CPU): arms are equal, and the ranks share their history."""

import json
import shlex
from pathlib import Path

import pytest
from composed import composed_arm, composed_run
from scripts import ROOT, SIZES, TWO_RANKS, run_script

from analysis import read
from experiments.arm.validate import check_processes
from experiments.compare.comparison import arm_overrides
from experiments.compare.run_arms import finished, own_command
from experiments.run.errors import UserError

pytestmark = pytest.mark.slow

STEPS = 3
SMALL = [
    *SIZES,
    "engine.processes=2",
    "task.lock_step=false",
    "checkpoint.every=0",
    f"trainer.max_steps={STEPS}",
    "data.problems=4",
    "data.kinds={pair:3,triple:3,walk:2}",  # of these problems the responses stay long and differ
    "budget=fixed",  # it drafts the same whatever the clock says
    "trainer.learning_rate=0.001",
    "wandb=off",
]
IDENTICAL = ("completions", "rewards", "losses", "grad_norms", "final_weights", "optimizer")


@pytest.fixture(scope="module")
def compared(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The arms none and das with two processes each, started as the comparison would start them, which finds them."""
    folder, overrides = tmp_path_factory.mktemp("outputs") / "run", [*SMALL, f"policy.path={repetitive_policy}"]
    for arm in ("none", "das"):
        config, own = composed_arm(arm, *overrides), arm_overrides(overrides, {"arm": arm})
        _, *command = own_command(config, own, folder / "arms" / arm, folder.name)
        assert tuple(command[: len(TWO_RANKS)]) == TWO_RANKS
        lines = run_script(*command).splitlines()
        assert sum(line.startswith("step ") for line in lines) == STEPS  # only the main process prints
    lines = run_script("run.py", *overrides, f"hydra.run.dir={folder}").strip().splitlines()
    assert {"none is finished already", "das is finished already"} <= {*lines}
    assert lines[-1] == f"result: {folder / 'result.json'}"
    return folder


def test_arms_are_identical(compared: Path) -> None:
    result = read.result(compared)
    assert all(result["identical"]["das"][what] for what in IDENTICAL)
    assert result["arms"]["das"]["accepted"]["mean"] > 0
    assert result["arms"]["none"]["drafted"]["max"] == 0
    first, *_, last = (row["loss"] for row in read.metrics(compared / "arms" / "das"))
    assert first != last


def test_files_are_written_once_and_hold_all_ranks(compared: Path) -> None:
    rows = read.metrics(compared)
    assert [(row["step"], row["arm"]) for row in rows] == [(s, a) for s in range(1, STEPS + 1) for a in ("none", "das")]
    assert (compared / "live_requests.png").stat().st_size > 0
    for name in ("none", "das"):
        arm = compared / "arms" / name
        assert json.loads((arm / "meta.json").read_text())["command"].startswith("run.py ")
        for row in read.metrics(arm):
            responses = read.rollout(arm, row["step"])
            assert [response["rank"] for response in responses] == [0] * 8 + [1] * 8
            assert [response["sample"] for response in responses] == list(range(16))
            assert sum(len(response["response_ids"]) for response in responses) == row["tokens"]
            assert row["reward"] == pytest.approx(sum(response["reward"] for response in responses) / 16)
            if row["step"] == 1:  # no noise is drawn twice; later the policy writes one token again and again
                assert len({tuple(response["response_ids"]) for response in responses}) == 16


def test_a_problem_finds_the_responses_of_other_ranks(compared: Path) -> None:
    # Seen to fail with ranks that keep what they finished, and with ranks that exchange it but ask for none of it.
    arm = compared / "arms" / "das"
    rolled_out = [read.rollout(arm, step) for step in range(1, STEPS + 1)]
    asked = [[{r["problem_id"] for r in step if r["rank"] == rank} for step in rolled_out] for rank in (0, 1)]
    assert any(own & others for own, others in zip(asked[0][1:], asked[1][:-1], strict=True)), "a problem changes ranks"
    known = 0  # tokens that the two engines know in the end
    for rank in (0, 1):
        for place, step in enumerate(rolled_out):
            later = set().union(*asked[rank][place + 1 :])
            known += sum(len(r["response_ids"]) for r in step if r["rank"] == rank or r["problem_id"] in later)
    rows = read.metrics(arm)
    assert rows[-1]["history_tokens"] == known > sum(row["tokens"] for row in rows)
    assert rows[-1]["exchange_bytes"] > 0
    assert all((arm / f"history{of}.npz").stat().st_size > 0 for of in ("", "_rank1"))


def test_a_finished_arm_is_kept_unless_it_did_other_work(compared: Path, repetitive_policy: str) -> None:
    overrides = [*SMALL, f"policy.path={repetitive_policy}"]
    same, other = composed_arm("das", *overrides), composed_arm("das", *overrides, "seed=1")
    assert finished(compared / "arms" / "das", same)
    assert not finished(compared / "arms" / "ngram", same)
    with pytest.raises(UserError, match="another seed"):
        finished(compared / "arms" / "das", other)


@pytest.mark.parametrize(
    ("launched", "overrides", "message"),
    [
        (1, ["engine.processes=2"], "=2, but 1 were launched: python -m torch.distributed.run --standalone --nproc"),
        (1, ["setting=maths_paper"], "python -m accelerate.commands.launch .* --num_processes 8"),
        (2, [], "2 were launched: set engine.processes=2"),
        (2, ["engine.processes=2", "engine.tensor_parallel_size=2"], "engine.tensor_parallel_size=2: run.py trains"),
        (3, ["engine.processes=3", "trainer.per_device_train_batch_size=4"], "among 3 processes"),
    ],
)
def test_processes_must_be_as_configured(
    launched: int, overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(launched))
    config = composed_arm("das", "task=train", *overrides)
    with pytest.raises(UserError, match=message):
        check_processes(config)


def launches() -> list[tuple[str, str]]:
    """What the pages of paper scale give to accelerate and to run.py."""
    texts = [(ROOT / "docs" / page).read_text().replace("\\\n", " ") for page in ("reproduce.md", "eight_gpus.md")]
    lines = [line for text in texts for line in text.splitlines() if "num_processes" in line and " run.py " in line]
    return [(launcher, command) for launcher, _, command in (line.partition(" run.py ") for line in lines)]


def test_the_documented_launches_compose() -> None:
    assert launches()
    for launcher, command in launches():
        overrides = [word for word in shlex.split(command) if not word.startswith("hydra.")]
        config = composed_run(*overrides)
        assert f"--num_processes {config.engine.processes} " in f"{launcher} "
        assert config.problems_per_step % config.engine.processes == 0
        assert not config.task.lock_step
