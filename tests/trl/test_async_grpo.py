"""AsyncGRPOTrainer with das: drafts change no bit, nothing is dropped, and what the clock would decide is refused."""

import itertools
import multiprocessing
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from async_grpo_runs import ROWS, STEPS, built, reward, speculate
from transformers import TrainerCallback

import das
from das.errors import EngineDied, EngineError
from das.trl import patches as trl_trainers
from experiments.digests import weights_digest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def trl_untouched_afterwards() -> Iterator[None]:
    yield
    das.speculate("off")


def train(policy: str, folder: Path, method: str, lag: int) -> dict[str, Any]:
    """Train, and return what must be equal in all bits, and what was drafted."""
    groups: list[tuple[int, list[list[int]]]] = []

    def noted(completion_ids: list[list[int]], answer: list[int], **columns: Any) -> list[float]:
        groups.append((answer[0], completion_ids))
        return reward(completion_ids, answer, **columns)

    speculate(method, lag)
    trainer = built(policy, folder, noted)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "grad_norm" in log]
    generation = trainer.rollout_worker.generation
    return {
        "exact": {
            "responses": [ids for _, ids in groups],
            "losses": [(log["loss"], log["grad_norm"], log["reward"], log["ratio"]) for log in logs],
            "weights": weights_digest(trainer.model),
        },
        "rows": [row for row, _ in groups],
        "logs": logs,
        "drafted": generation.num_drafted,
        "accepted": generation.num_accepted,
    }


@pytest.fixture(scope="module")
def runs(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `train` returns, by method and lag."""
    folder = tmp_path_factory.mktemp("runs")
    try:
        return {
            f"{method} {lag}": train(repetitive_policy, folder, method, lag)
            for lag in (1, 2)
            for method in ("none", "das")
        }
    finally:
        das.speculate("off")


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [("none 1", "das 1"), ("none 2", "das 2")])
def test_no_bit_differs(runs: dict[str, Any], one: str, other: str) -> None:
    assert runs[one]["exact"] == runs[other]["exact"]
    assert runs[other]["accepted"] > 0
    assert runs["none 1"]["drafted"] == runs["none 2"]["drafted"] == 0


@pytest.mark.slow
def test_lags_differ_from_the_first_rollout_of_other_weights(runs: dict[str, Any]) -> None:
    """Lag 1 samples two steps with the first weights, lag 2 three. A step has two groups."""
    one, two = (runs[name]["exact"]["responses"] for name in ("das 1", "das 2"))
    assert one[:4] == two[:4]
    assert one[4:6] != two[4:6]
    assert runs["das 1"]["exact"]["weights"] != runs["das 2"]["exact"]["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("lag", [1, 2])
def test_each_step_trains_on_its_own_rollout(runs: dict[str, Any], lag: int) -> None:
    run = runs[f"das {lag}"]
    assert run["rows"] == [number % ROWS for number in range(2 * (STEPS + 1))]  # one rollout for what is fetched ahead
    logs = run["logs"]
    assert len(logs) == STEPS
    assert [log["sample/staleness_max"] for log in logs][lag:] == [lag] * (STEPS - lag)
    assert not any("dropped" in name for log in logs for name in log)
    assert all(log["batch/samples_per_step"] == 8 and log["grad_norm"] > 0 for log in logs)
    assert logs[0]["ratio"] == pytest.approx(1, abs=1e-4)  # of the weights that sampled
    assert max(abs(log["ratio"] - 1) for log in logs[1:]) > 1e-4
    assert all(log["das/drafted"] >= log["das/accepted"] for log in logs)


@pytest.mark.slow
def test_what_goes_wrong_beside_the_training_stops_it(repetitive_policy: str, tmp_path: Path) -> None:
    """A reward function that fails, an engine that dies, and samples that TRL leaves out."""

    def wrong(prompts: list[Any], **columns: Any) -> list[float]:
        raise ZeroDivisionError("no reward for this")

    class Kill(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            (engine,) = [child for child in multiprocessing.active_children() if child.name == "engine"]
            engine.kill()

    speculate("das", lag=1)
    failing = built(repetitive_policy, tmp_path, wrong)
    with pytest.raises(ZeroDivisionError, match="no reward for this"):
        failing.train()
    with pytest.raises(EngineError, match="trains once: build a new trainer"):
        failing.train()
    dying = built(repetitive_policy, tmp_path)
    dying.add_callback(Kill())
    with pytest.raises(EngineDied, match=r"the engine's process has died \(exit code -9"):
        dying.train()
    dropping = built(repetitive_policy, tmp_path)
    dropping.args.max_staleness = 0
    with pytest.raises(EngineError, match=r"TRL left samples out \(sample/dropped_stale_total\)"):
        dropping.train()
    assert not multiprocessing.active_children()


@pytest.mark.slow
@pytest.mark.parametrize(("failing", "steps"), [(2, 0), (6, 1)])
def test_a_reward_that_fails_once_lets_no_step_train_on_other_rows(
    repetitive_policy: str, tmp_path: Path, failing: int, steps: int
) -> None:
    """The second group of the first rollout, and of the third: step 1 needs a micro-batch of that one."""
    calls = itertools.count(1)

    def once_wrong(completion_ids: list[list[int]], answer: list[int], **columns: Any) -> list[float]:
        if next(calls) == failing:
            raise ZeroDivisionError("once")
        return reward(completion_ids, answer)

    speculate("das", lag=1)
    trainer = built(repetitive_policy, tmp_path, once_wrong)
    with pytest.raises(ZeroDivisionError, match="once"):
        trainer.train()
    assert trainer.state.global_step == steps
    assert trainer._trained_groups <= set(range(2 * (steps + 1) if steps else 0))
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_a_training_that_ends_amid_a_rollout_ends_well(
    repetitive_policy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An epoch is over before max_steps, which is only TRL's ceiling then."""
    speculate("das", lag=2)
    trainer = built(repetitive_policy, tmp_path, max_steps=-1, num_train_epochs=1, max_completion_length=100)
    worker = trainer.rollout_worker
    generation, unfinished = worker.generation, []
    (engine,) = generation.engines.cluster.engines.engines.values()
    process = engine.actor.process
    close = generation.close

    def noting() -> None:
        unfinished.append(sum(not rollout.done() for rollout in worker._unscored))
        close()

    generation.close = noting
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        trainer.train()
    assert (
        trainer.state.global_step == ROWS // 2 < trainer.state.max_steps
    )  # TRL counts the group that it fetched ahead
    assert unfinished[0] >= 1
    assert process.exitcode == 0  # it was not killed
    printed = capfd.readouterr().err
    assert "Traceback" not in printed
    assert "rror" not in printed


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import async_grpo_runs
async_grpo_runs.speculate("das", lag=1)
async_grpo_runs.built({policy!r}, Path({folder!r}))
"""


@pytest.mark.slow
def test_a_script_that_runs_when_it_is_imported_is_told_so(repetitive_policy: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), policy=repetitive_policy, folder=str(tmp_path)))
    run = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].endswith('(exit code 1; does the script lack `if __name__ == "__main__":`?)')


# ---- without an engine ----


@pytest.mark.parametrize(
    ("lag", "changes", "message"),
    [
        (1, {"token_budget": None}, "token_budget=None: .* set token_budget=0"),
        (1, {"token_budget": 4096}, "token_budget=4096: .* set token_budget=0"),
        (5, {}, "max_staleness=4: .* set it to 5 or more"),
        (1, {"weight_sync_steps": 2}, "weight_sync_steps=2: .* set it to 1"),
        (1, {"num_generations": 3}, "8 samples, which are no whole groups of 3"),
    ],
)
def test_what_the_clock_would_decide_is_refused(
    tiny_policy: str, tmp_path: Path, lag: int, changes: dict[str, Any], message: str
) -> None:
    das.speculate(lag=lag)
    with pytest.raises(EngineError, match=f"^AsyncGRPOTrainer with das: .*{message}"):
        built(tiny_policy, tmp_path, **changes)


@pytest.mark.parametrize("name", ["tools", "environment_factory", "peft_config", "rollout_worker", "weight_transfer"])
def test_arguments_that_are_refused(tiny_policy: str, name: str) -> None:
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    das.speculate()
    with pytest.raises(EngineError, match=f"^AsyncGRPOTrainer with das: {name}: "):
        AsyncGRPOTrainer(tiny_policy, reward, **{name: object()})


def test_a_cluster_is_refused(tiny_policy: str, tmp_path: Path) -> None:
    das.speculate(cluster={"engines": 2})
    with pytest.raises(
        EngineError, match=r"^AsyncGRPOTrainer with das: it rolls out on one engine .* leave out cluster="
    ):
        built(tiny_policy, tmp_path)


def test_several_processes_are_refused(tiny_policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.experimental.async_grpo import AsyncGRPOTrainer

    das.speculate()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(EngineError, match=r"2 processes: .* launch one"):
        AsyncGRPOTrainer(tiny_policy, reward)


@pytest.mark.parametrize("rewarded", [None, []])
def test_no_reward_function_is_refused_before_an_engine_is_built(
    tiny_policy: str, tmp_path: Path, rewarded: Any
) -> None:
    das.speculate()
    with pytest.raises(EngineError, match=r"^AsyncGRPOTrainer with das: reward_funcs: .* pass a function"):
        built(tiny_policy, tmp_path, rewarded)
    assert not multiprocessing.active_children()


def test_trainers_that_were_built_before_are_refused(tiny_policy: str, tmp_path: Path) -> None:
    with trl_trainers.built_on(torch.device("cpu")):
        earlier = built(tiny_policy, tmp_path, vllm_server_timeout=1)
    das.speculate()
    with pytest.raises(EngineError, match=r"call das\.speculate\(\) before it is built"):
        earlier.train()


def test_what_counts_is_the_device_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """use_cpu=True on a machine with a GPU."""
    from trl.experimental.async_grpo import async_grpo_trainer

    original = async_grpo_trainer.get_peak_flops_per_device
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with trl_trainers.built_on(torch.device("cpu")):
        assert async_grpo_trainer.get_peak_flops_per_device(None, "float32") is None  # asks CUDA for nothing
    with trl_trainers.built_on(torch.device("cuda", 0)):
        assert async_grpo_trainer.get_peak_flops_per_device is original
