"""The harness's trainer and a plain TRL script with das.speculate() give the same tokens, losses and weights.

The harness computes padding here, as TRL does.
"""

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from composed import composed_arm
from conftest import in_a_fork
from trl_runs import ON_CPU

from analysis import read
from experiments.settings.config import RunConfig

pytestmark = pytest.mark.slow

# All that configs/trainer/grpo.yaml names: two problems a step, of four, so that an epoch has two steps.
TRAINER: dict[str, Any] = {
    "max_steps": 5,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 48,
    "temperature": 1.0,
    "learning_rate": 0.001,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.3,
    "beta": 0.0,
    "vllm_importance_sampling_correction": True,
}
BUDGET = {"name": "fixed", "tokens": 8}  # does not look at the clock, so that drafts are alike in every run
WINDOW = 1  # epochs: the history that drafts come from depends on where an epoch ends


def train_in_harness(config: RunConfig, policy: str, folder: Path) -> dict[str, Any]:
    """What a run of the harness leaves in its folder."""
    from experiments.arm.train_arm import ArmRun, train_arm
    from experiments.training.barrier import Barrier

    train_arm(ArmRun(config, policy, folder, "test", Barrier(lambda row: None)))
    rows = read.metrics(folder)
    return {
        "tokens": [[response["response_ids"] for response in read.rollout(folder, row["step"])] for row in rows],
        "losses": [row["loss"] for row in rows],
        "drafted": [[row["drafted"], row["accepted"]] for row in rows],
        "weights": json.loads((folder / "final.json").read_text())["final_weights"],
    }


def train_with_trl(policy: str, problems: Any, folder: Path, seed: int = 0) -> dict[str, Any]:
    """A plain TRL script: nothing of das but das.speculate(). It takes down what the harness records."""
    from trl import GRPOConfig, GRPOTrainer

    import das
    from experiments.digests import weights_digest
    from rewards.brevity import brevity_reward

    tokens: list[Sequence[Sequence[int]]] = []
    losses: list[list[float]] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        tokens.append(completion_ids)
        losses.append([])
        return brevity_reward([completion[-1]["content"] for completion in completions])

    class Trainer(GRPOTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(*args, **kwargs)
            losses[-1].append(float(loss))
            return loss

    das.speculate(drafter={"window": WINDOW}, budget=BUDGET)
    args = GRPOConfig(output_dir=str(folder), seed=seed, **ON_CPU, **TRAINER)
    trainer = Trainer(model=policy, reward_funcs=reward, args=args, train_dataset=problems)
    das.speculate("off")  # the trainer that is built goes on drafting
    trainer.train()
    rows = [row for row in trainer.state.log_history if "das/drafted" in row]
    return {
        "tokens": tokens,
        "losses": [sum(of_step) for of_step in losses],
        "drafted": [[row["das/drafted"], row["das/accepted"]] for row in rows],
        "weights": weights_digest(trainer.model),
    }


def trl_is_untouched() -> bool:
    from trl.generation.vllm_generation import VLLMGeneration
    from trl.trainer import grpo_trainer
    from trl.trainer.grpo_trainer import GRPOTrainer

    hooks = (GRPOTrainer.__init__, GRPOTrainer._generate_and_score_completions)
    return grpo_trainer.VLLMGeneration is VLLMGeneration and not any(hasattr(hook, "__wrapped__") for hook in hooks)


def train_all(config: RunConfig, policy: str, folder: Path) -> dict[str, Any]:
    """In a process of its own: one start for all runs, one after the other."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    from experiments.arm.data import dataset

    runs: dict[str, Any] = {"harness": train_in_harness(config, policy, folder / "harness")}
    untouched = [trl_is_untouched()]
    problems = dataset(config, policy)
    for name, seed in (("script", 0), ("another seed", 1)):
        gc.collect()
        cleanup_dist_env_and_memory()
        runs[name] = train_with_trl(policy, problems, folder / name, seed)
        untouched.append(trl_is_untouched())
    return {**runs, "untouched": untouched}


@pytest.fixture(scope="module")
def trained(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    settings = {f"trainer.{key}": value for key, value in TRAINER.items() if key != "gradient_accumulation_steps"}
    overrides = [f"{key}={value}" for key, value in settings.items()]
    overrides += ["+trainer.gradient_accumulation_steps=2", "data.problems=4", "reward=brevity", "wandb=off"]
    overrides += ["trainer.trim_padding=false"]  # TRL's own bits
    overrides += ["engine.max_num_seqs=8", "engine.max_model_len=160", "checkpoint.every=0", f"drafter.window={WINDOW}"]
    overrides += [f"budget={BUDGET['name']}", f"budget.tokens={BUDGET['tokens']}"]
    config = composed_arm("das", *overrides)
    found: dict[str, Any] = in_a_fork(train_all, config, repetitive_policy, tmp_path_factory.mktemp("runs"))
    return found


@pytest.mark.parametrize("what", ["tokens", "losses", "weights", "drafted"])
def test_harness_and_script_are_equal(trained: dict[str, Any], what: str) -> None:
    assert trained["harness"][what] == trained["script"][what]
    assert trained["another seed"][what] != trained["script"][what]  # the comparison can tell runs apart


def test_the_runs_were_worth_comparing(trained: dict[str, Any]) -> None:
    harness = trained["harness"]
    assert [len(responses) for responses in harness["tokens"]] == [8] * TRAINER["max_steps"]
    assert all(loss != 0 for loss in harness["losses"])
    assert min(accepted for _, accepted in harness["drafted"]) > 0


def test_trl_is_left_as_it_was(trained: dict[str, Any]) -> None:
    """By building the harness's trainer, and by das.speculate("off")."""
    assert trained["untouched"] == [True, True, True]
