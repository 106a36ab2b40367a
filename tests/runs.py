"""Short trainings of the harness that tests share: a table of runs, each made once a session.

`runs(NAME)` (tests/conftest.py) gives a run's folder, and makes what it needs: the run that it resumes, its policy. All
runs of a test process are made in one other process, a fork of the warm one. tests/trl/test_equal_runs.py has what must
be equal, and what else the runs show.
"""

import gc
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from composed import composed_arm
from equal_runs import differing_files, timeless
from faults import planted
from scripts import SIZES

from analysis import read
from analysis.metrics import evaluations
from experiments.arm import resume
from experiments.run.progress import Barrier
from experiments.settings.config import RunConfig

STEPS = 6
SETTINGS = [
    *SIZES, "wandb=off", "data.problems=6", f"trainer.max_steps={STEPS}", "checkpoint.every=1", "checkpoint.keep=9",
    "budget=fixed", "budget.tokens=8", "trainer.learning_rate=0.003", "+engine.extra={num_gpu_blocks_override:256}",
]  # fmt: skip
OWN_PROCESS = "engine.own_process=true"
EVALUATED = ("eval.every=3", "eval.problems=4", "eval.samples=2")
STOPS = "+trainer.generation_kwargs={stop_token_ids:[99,179,198,206,291]}"  # without, all responses are equally long
LAG_2 = ("trainer.lag=2", *EVALUATED)
LAG_4 = ("trainer.lag=4",)
TWO = ("cluster=ray", "cluster.engines=2", "cluster.silent_s=10")
HEAD = ("head.share=0.5", "head.responses=16", "head.epochs=2")
UNCORRECTED = ("trainer.vllm_importance_sampling_correction=false", "trainer.max_steps=3", STOPS)
HEADS = ("data.problems=4", "trainer.max_steps=4", "checkpoint.every=2", "trainer.learning_rate=0.01", *HEAD)


@dataclass(frozen=True)
class Run:
    """A training of one arm. equals: the run that has the same tokens, rewards, losses and weights."""

    arm: str = "das"
    settings: Sequence[str] = ()
    equals: str = ""
    start: int = 0  # it resumes `equals` from this step
    policy: str = "repetitive"  # a name of conftest.policies
    killed: bool = False  # its engine is killed when the second step is done
    faults: Sequence[str] = ()  # by rollout, evaluations too: what strikes an engine of its cluster (faults.py)
    nightly: bool = False


RUNS = {
    "none": Run("none"),
    "das": Run(equals="none"),
    "das_evaluated": Run(settings=EVALUATED, equals="das"),
    "das_evaluated_resumed": Run(settings=EVALUATED, equals="das_evaluated", start=2),
    "das_unlimited": Run("das_unlimited", equals="none", nightly=True),
    "self_draft": Run("self_draft", equals="none"),
    # The engine's log-probs do not enter the loss, so nobody asks for them.
    "none_uncorrected": Run("none", UNCORRECTED),
    "das_uncorrected": Run("das", UNCORRECTED, "none_uncorrected", nightly=True),
    "none_lag2": Run("none", LAG_2),
    "self_lag2": Run("self_draft", LAG_2, "none_lag2", nightly=True),
    "beside_lag2": Run("self_draft", (*LAG_2, OWN_PROCESS), "none_lag2", killed=True, nightly=True),
    "none_lag4": Run("none", LAG_4),
    "das_lag4": Run("das", LAG_4, "none_lag4"),
    "das_lag4_resumed": Run("das", LAG_4, "das_lag4", start=3),
    "beside_lag4": Run("das", (*LAG_4, OWN_PROCESS), "none_lag4", nightly=True),
    "beside_lag4_resumed": Run("das", (*LAG_4, OWN_PROCESS), "beside_lag4", start=5, nightly=True),
    # Drafters with weights of their own.
    "none_heads": Run("none", HEADS, policy="deep"),
    "eagle3_frozen": Run("eagle3_frozen", HEADS, "none_heads", policy="deep", nightly=True),
    "eagle3_online": Run("eagle3_online", HEADS, "none_heads", policy="deep"),
    "eagle3_online_resumed": Run("eagle3_online", HEADS, "eagle3_online", start=2, policy="deep"),
    "draft_model": Run("draft_model", HEADS, "none_heads", policy="deep", nightly=True),
    "none_mtp": Run("none", HEADS, policy="mtp"),
    "mtp": Run("mtp", HEADS, "none_mtp", policy="mtp", nightly=True),
    # The engine that takes the place of the killed one starts meanwhile, and has all requests once the other is frozen.
    "cluster": Run("das", (*EVALUATED, *TWO), "das_evaluated", faults=("", "kill", "", "", "", "freeze")),
    "cluster_resumed": Run("das", (*EVALUATED, "cluster=ray", "cluster.engines=1"), "cluster", start=5, nightly=True),
    # The rollout of step 4 is submitted in the second step.
    "cluster_lag2": Run("das", (*LAG_2, *TWO), "none_lag2", faults=("", "", "", "", "kill"), nightly=True),
    "online_lag2": Run("eagle3_online", (*LAG_2, *HEAD), "none_lag2", nightly=True),
    "online_beside": Run("eagle3_online", (*LAG_2, *HEAD, OWN_PROCESS), "online_lag2", nightly=True),
    "online_cluster": Run("eagle3_online", (*LAG_2, *HEAD, *TWO), "online_lag2", nightly=True),
}


def config_of(arm: str, *overrides: str) -> RunConfig:
    return composed_arm(arm, *SETTINGS, *overrides)


def ignore(row: dict[str, Any]) -> None:
    """Nothing is done when a step is over."""


def kill_engine(row: dict[str, Any]) -> None:
    """Kill the engine's process when the second step is done."""
    if row["step"] == 2:
        started = psutil.Process().children(recursive=True)
        (engine,) = (process for process in started if process.name().startswith("ray::RolloutEng"))
        engine.kill()


def make(name: str, policy: str, whole: Path | None, folder: Path, *overrides: str) -> None:
    """Make the run `name` of RUNS in `folder`. whole: the run that it resumes."""
    run = RUNS[name]
    if whole is not None:
        shutil.copytree(whole, folder, dirs_exist_ok=True)
    noted = kill_engine if run.killed else ignore
    with planted(run.faults):
        train(run.arm, policy, folder, *run.settings, *overrides, start=run.start, noted=noted)


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

    from experiments.arm.train_arm import ArmRun, train_arm

    config = config_of(arm, *overrides)
    if start:
        resume.rewind(folder, start)
    try:
        train_arm(ArmRun(config, policy, folder, "test", Barrier(noted), start=start))
    finally:
        gc.collect()
        cleanup_dist_env_and_memory()


def outcome(folder: Path) -> dict[str, Any]:
    """What must be equal in all bits."""
    rows = read.metrics(folder)
    return {
        "tokens": [[response["response_ids"] for response in read.rollout(folder, row["step"])] for row in rows],
        "rewards": [row["rewards_digest"] for row in rows],
        "losses": [row["loss"] for row in rows],
        "norms": [row["grad_norm"] for row in rows],
        "final": read.final(folder),
    }


def evaluated(folder: Path) -> list[Any]:
    """The exact numbers of a run's evaluations."""
    exact = ("step", "completions_digest", "correct", "tokens")
    return [[each[key] for key in exact] for each in evaluations(read.metrics(folder))]


def unevaluated(folder: Path) -> list[dict[str, Any]]:
    """A run's rows without evaluations, which have times of their own."""
    return [{key: value for key, value in row.items() if key != "eval"} for row in read.metrics(folder)]


def column(folder: Path, name: str) -> list[Any]:
    return [row[name] for row in read.metrics(folder)]


def compared(on_cluster: bool) -> list[Any]:
    """The names of the runs that must equal another, as parameters of a test."""
    return [
        pytest.param(name, marks=pytest.mark.nightly if run.nightly else ())
        for name, run in RUNS.items()
        if run.equals and ("cluster=ray" in run.settings) == on_cluster
    ]


def require_equal(name: str, runs: Callable[[str], Path]) -> None:
    """Fail unless the run has all bits of the one that it equals. What resumes drafts as the one left alone, too."""
    run, folder, other = RUNS[name], runs(name), runs(RUNS[name].equals)
    found, expected = outcome(folder), outcome(other)
    if run.arm != RUNS[run.equals].arm:
        found["final"].pop("head", None)  # of the arm whose head learns
    assert found == expected
    assert sum(column(folder, "accepted")) > 0
    if RUNS[run.equals].arm == "none":
        assert not any(column(other, "drafted"))
    if set(EVALUATED) <= set(run.settings) & set(RUNS[run.equals].settings):
        assert len(evaluated(folder)) == 3
        assert evaluated(folder) == evaluated(other)
    # On engines in other processes it is chance which requests share a pass, and with it what is drafted.
    if run.start and "cluster" not in read.metrics(folder)[0]:
        assert timeless(unevaluated(folder)) == timeless(unevaluated(other))
        assert list(differing_files(other, folder)) == []


def sampled_again(policy: str, found: Sequence[tuple[Path, int]]) -> list[list[list[list[int]]]]:
    """What a plain engine samples for each run, by step, with the weights of the checkpoint that its lag asks for.
    found: of each run its folder and its lag."""
    from safetensors.torch import load_file
    from vllm import SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    from das.engine.build import build_engine
    from das.engine.install import install
    from das.engine.rollouts.rollout import request_seed
    from das.engine.settings import EngineSettings
    from experiments.arm.data import tokenized
    from experiments.training.checkpoint import step_folder

    install()
    settings = EngineSettings(model=policy, dtype="float32", max_model_len=160, extra={"num_gpu_blocks_override": 256})
    llm: Any = build_engine(settings)
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    prompts = dict(tokenized(config_of("none"), policy))

    def sampled(folder: Path, row: dict[str, Any], lag: int) -> list[list[int]]:
        step = row["step"] - 1
        weights = max(0, step - lag)
        path = step_folder(folder / "checkpoints", weights) if weights else Path(policy)
        model.load_weights(load_file(path / "model.safetensors").items())
        llm.reset_prefix_cache()
        llm.collective_rpc("das_use_new_weights")
        responses = read.rollout(folder, row["step"])
        params = [
            SamplingParams(temperature=1.0, max_tokens=48, seed=request_seed(0, step, index), logprobs=0)
            for index in range(len(responses))
        ]
        outputs = llm.generate([prompts[response["problem_id"]] for response in responses], params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    runs = [[sampled(folder, row, lag) for row in read.metrics(folder)] for folder, lag in found]
    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    return runs


def train_script(policy: str, folder: Path, lag: int, start: int = 0) -> dict[str, Any]:
    """A script of TRL, with drafts and evaluations, that trains what `config_of` describes, from the checkpoint of
    `start`. Returns the steps' tokens, losses and drafts, and the final weights."""
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    import das
    from das.general.errors import EngineError
    from experiments.arm.data import dataset
    from experiments.arm.train_arm import grpo_arguments
    from experiments.digests import weights_digest
    from rewards.conversations import brevity

    config = config_of("das")
    tokens: list[Any] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        if trainer.model.training:
            tokens.append([list(ids) for ids in completion_ids])
        return brevity(completions)

    class Asks(TrainerCallback):
        """Asks the engine while it rolls out for later steps."""

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            refused = pytest.raises(EngineError, match=r"llm\.generate: engines in processes of their own")
            with refused:
                generation.llm.generate(["p"])
            with refused:
                generation.generate([[5, 6, 7]], None, 1)

    engine = {"max_model_len": 160, "max_num_seqs": 8, "extra": {"num_gpu_blocks_override": 256}}
    das.speculate("das", budget={"name": "fixed", "tokens": 8}, engine=engine, lag=lag)
    args = grpo_arguments(config, folder)
    args.output_dir, args.eval_strategy, args.eval_steps = str(folder), "steps", 2
    rows = dataset(config, policy)
    trainer = GRPOTrainer(
        model=policy,
        reward_funcs=reward,
        args=args,
        train_dataset=rows,
        eval_dataset=rows.select(range(4)),
        callbacks=[Asks()] if lag else [],
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
            "drafted": [[log["das/drafted"], log["das/accepted"]] for log in logs],
            "evaluations": sum("eval_reward" in log for log in trainer.state.log_history),
        }
    finally:
        generation.close()


# ---- runs that stop with an error ----


def error_of(fault: str, arm: str, policy: str, folder: Path, *overrides: str) -> str:
    """Train with a fault, a key of FAULTS. Returns the error that stops the training, or ""."""
    try:
        with FAULTS[fault]():
            train(arm, policy, folder, *overrides)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


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


def older_prefixes() -> AbstractContextManager[Any]:
    """Inside, an engine's prefix cache keeps what older weights computed."""
    from vllm import LLM

    return patch.object(LLM, "reset_prefix_cache", lambda self, *args, **kwargs: False)


FAULTS = {"lost weights": lost_weights, "nan": nan_in_third_step, "older prefixes": older_prefixes}
