"""Trainings of the harness in one process, with lags and faults, and the slow reference for what a lag samples."""

import gc
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from hydra import initialize_config_dir
from scripts import SIZES

from analysis import read
from experiments.harness import resume
from experiments.harness.arm_configs import arm_config
from experiments.run.errors import CONFIGS
from experiments.settings.config import RunConfig
from experiments.training.barrier import Barrier

STEPS = 6
SETTINGS = [
    *SIZES, "wandb=off", "data.problems=6", f"trainer.max_steps={STEPS}", "checkpoint.every=1", "checkpoint.keep=9",
    "budget=fixed", "budget.tokens=8", "trainer.learning_rate=0.003", "+engine.extra={num_gpu_blocks_override:256}",
]  # fmt: skip


def config_of(arm: str, *overrides: str) -> RunConfig:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return arm_config(arm, [*SETTINGS, *overrides])


def often_flat(completions: list[list[dict[str, str]]], **columns: Any) -> list[float]:
    """A reward: 1 for one of eight responses, so that those to a problem often have equal rewards."""
    return [float(len(conversation[-1]["content"]) % 8 == 0) for conversation in completions]


def ignore(row: dict[str, Any]) -> None:
    """Nothing is done when a step is over."""


def train(
    arm: str,
    policy: str,
    folder: Path,
    *overrides: str,
    start: int = 0,
    noted: Callable[[dict[str, Any]], None] = ignore,
) -> None:
    """Train in `folder`, from the checkpoint of `start`. noted: called with the row of each step."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    from experiments.harness.train_arm import ArmRun, train_arm

    config = config_of(arm, *overrides)
    if start:
        resume.rewind(folder, start)
    try:
        train_arm(ArmRun(config, policy, folder, "test", Barrier(noted), start=start))
    finally:
        gc.collect()
        cleanup_dist_env_and_memory()


def train_all(runs: dict[str, Sequence[str]], policy: str, folder: Path) -> None:
    """Train each run, by name: [arm, *overrides]."""
    for name, (arm, *overrides) in runs.items():
        train(arm, policy, folder / name, *overrides)


def train_again(arm: str, policy: str, whole: Path, folder: Path, start: int, *overrides: str) -> None:
    """Copy a finished run to `folder`, go back to the checkpoint of `start`, and train on from it."""
    shutil.copytree(whole, folder)
    train(arm, policy, folder, *overrides, start=start)


def train_script(method: str, policy: str, folder: Path, start: int = 0) -> dict[str, Any]:
    """A script of TRL at lag 1, with evaluations, that trains what `config_of` describes, from the checkpoint of
    `start`. Returns the steps' tokens, the losses, the final weights and the number of accepted tokens."""
    from trl import GRPOTrainer

    import das
    from experiments.digests import weights_digest
    from experiments.harness.data import dataset
    from experiments.harness.train_arm import grpo_arguments
    from rewards.brevity import brevity_reward

    config = config_of("das")
    tokens: list[Any] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        if trainer.model.training:
            tokens.append([list(ids) for ids in completion_ids])
        return brevity_reward([completion[-1]["content"] for completion in completions])

    budget, engine = {"name": "fixed", "tokens": 8}, {"max_model_len": 160, "extra": {"num_gpu_blocks_override": 256}}
    das.speculate(method, budget=budget, engine=engine, lag=1)
    args = grpo_arguments(config, folder)
    args.output_dir, args.eval_strategy, args.eval_steps = str(folder), "steps", 2
    rows = dataset(config, policy)
    trainer = GRPOTrainer(
        model=policy, reward_funcs=reward, args=args, train_dataset=rows, eval_dataset=rows.select(range(4))
    )
    das.speculate("off")
    generation: Any = trainer.vllm_generation
    try:
        trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{start}") if start else None)
        logs = [log for log in trainer.state.log_history if "das/accepted" in log]
        return {
            "tokens": tokens,
            "losses": [log["loss"] for log in logs],
            "weights": weights_digest(trainer.model),
            "accepted": sum(log["das/accepted"] for log in logs),
            "evaluations": sum("eval_reward" in log for log in trainer.state.log_history),
        }
    finally:
        generation.close()


def outcome(folder: Path) -> dict[str, Any]:
    """What must be equal in all bits."""
    rows = read.metrics(folder)
    return {
        "tokens": [[response["response_ids"] for response in read.rollout(folder, row["step"])] for row in rows],
        "rewards": [row["rewards_digest"] for row in rows],
        "losses": [row["loss"] for row in rows],
        "norms": [row["grad_norm"] for row in rows],
        "final": json.loads((folder / "final.json").read_text()),
    }


def tokens_of_checkpoints(policy: str, folder: Path, lag: int, recorded: bool = False) -> list[list[list[int]]]:
    """What the plain engine samples, step for step, with the weights of the checkpoint that the lag asks for.

    recorded: whether the seeds are those that the run recorded, and not those of the place in the step.
    """
    from safetensors.torch import load_file
    from vllm import SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    from das.engine.build import EngineSettings, build_engine
    from das.engine.install import install
    from das.engine.rollouts.rollout import request_seed
    from experiments.harness.rollout_steps import tokenized
    from experiments.training.checkpoint import step_folder

    install()
    llm: Any = build_engine(EngineSettings(model=policy, dtype="float32", max_model_len=160))
    prompts = dict(tokenized(config_of("none"), policy))
    steps = []
    for row in read.metrics(folder):
        step = row["step"] - 1
        weights = max(0, step - lag)
        path = step_folder(folder / "checkpoints", weights) if weights else Path(policy)
        model = llm.llm_engine.model_executor.driver_worker.model_runner.model
        model.load_weights(load_file(path / "model.safetensors").items())
        llm.reset_prefix_cache()
        llm.collective_rpc("das_use_new_weights")
        responses = read.rollout(folder, row["step"])
        params = [
            SamplingParams(temperature=1.0, max_tokens=48, seed=seed, logprobs=0)
            for index, response in enumerate(responses)
            for seed in [response["seed"] if recorded else request_seed(0, step, index)]
        ]
        outputs = llm.generate([prompts[response["problem_id"]] for response in responses], params, use_tqdm=False)
        steps.append([list(output.outputs[0].token_ids) for output in outputs])
    llm.llm_engine.engine_core.shutdown()
    del llm, model
    gc.collect()
    cleanup_dist_env_and_memory()
    return steps


def error_of(fault: str, arm: str, policy: str, folder: Path, *overrides: str) -> str:
    """Train with a fault: "lost weights" or "nan". Returns the error that stops the training, or ""."""
    try:
        with FAULTS[fault]():
            train(arm, policy, folder, *overrides)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def error_of_other_weights(how: str, policy: str, folder: Path) -> str:
    """Run an arm that takes weights from a file (task.train_once). how: the file is "altered", "of another step" or
    "half" there. Returns the error that stops the run, or "".
    """
    from transformers import AutoModelForCausalLM
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    from experiments.harness.train_arm import ArmRun, train_arm
    from experiments.training.train_once import WeightsFile

    path = folder / "weights.safetensors"
    WeightsFile(path).write(AutoModelForCausalLM.from_pretrained(policy), 2 if how == "of another step" else 1)
    data = path.read_bytes()
    if how == "altered":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "half":
        path.write_bytes(data[: len(data) // 2])
    arm = ArmRun(config_of("none"), policy, folder / "arm", "test", Barrier(ignore), weights=path, trains=False)
    try:
        train_arm(arm)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        gc.collect()
        cleanup_dist_env_and_memory()
    return ""


def train_killed(arm: str, policy: str, folder: Path, *overrides: str) -> None:
    """Train on an engine on Ray, whose process is killed when the second step is done."""
    train(arm, policy, folder, *overrides, noted=kill_engine)


def kill_engine(row: dict[str, Any]) -> None:
    """Kill the engine's process when the second step is done."""
    if row["step"] == 2:
        started = psutil.Process().children(recursive=True)
        (engine,) = (process for process in started if process.name().startswith("ray::RolloutEng"))
        engine.kill()


def lost_weights() -> AbstractContextManager[Any]:
    """Inside, an engine goes on with its old weights."""
    from das.engine.patches import weights

    return patch.object(weights, "repack_linear_layers", lambda model: None)


def nan_in_third_step() -> AbstractContextManager[Any]:
    """Inside, the loss of a training's third step is not a number."""
    from das.engine.patches.front_end import patch_front_end

    patch_front_end()
    from trl import GRPOTrainer

    compute_loss = GRPOTrainer.compute_loss

    def computed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return compute_loss(self, *args, **kwargs) * (float("nan") if self.state.global_step == 2 else 1.0)

    return patch.object(GRPOTrainer, "compute_loss", computed)


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "lost weights": lost_weights,
    "nan": nan_in_third_step,
}
