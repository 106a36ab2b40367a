"""Rollouts without training: the prompts of each step, rolled out by one engine."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from das.cluster.cluster import Cluster
from das.cluster.pool import EnginePool
from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed, rollout_row
from das.trl.dataset_rows import history_tick
from das.trl.engines.engines import Engines
from das.trl.engines.in_process import build_in_process
from experiments.harness import sizes
from experiments.harness.config import RunConfig
from experiments.harness.data import dataset
from experiments.harness.engine import engine_settings, make_schedule, prepare_process
from experiments.harness.step_record import record_step
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

Prompt = dict[str, list[int]]  # {"prompt_token_ids": token ids}, as vLLM takes it


@dataclass(frozen=True)
class RolloutRun:
    """Rollouts of one arm."""

    config: RunConfig
    policy: str  # directory or hub id
    steps: int  # how many rollouts, each over the prompts of a training step
    logprobs: int = 0  # how many of the likeliest tokens vLLM returns for each position, beside the emitted one


@dataclass(frozen=True)
class Batch:
    """The requests of one step."""

    problems: list[str]  # problem id of each request
    prompts: list[Prompt]
    next_history_tick: int  # the drafter's history tick once the step is over


def tokenized(config: RunConfig, policy: str) -> list[tuple[str, Prompt]]:
    """(problem id, prompt) of every problem of the data."""
    return tokenized_rows(config, policy, dataset(config, policy))


def tokenized_rows(config: RunConfig, policy: str, rows: Iterable[dict[str, Any]]) -> list[tuple[str, Prompt]]:
    """(problem id, prompt) of every row."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)

    def token_ids(conversation: Any) -> list[int]:
        ids: list[int] = tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, return_dict=False, **config.trainer.chat_template_kwargs
        )
        return ids

    return [(row["problem_id"], {"prompt_token_ids": token_ids(row["prompt"])}) for row in rows]


def batches(config: RunConfig, problems: list[tuple[str, Prompt]], steps: int) -> Iterator[Batch]:
    """The requests of each step. Every epoch goes through the problems in the same order."""
    per_step = config.problems_per_step
    steps_per_epoch = sizes.steps_per_epoch(len(problems), per_step)
    for step in range(steps):
        first = step % steps_per_epoch * per_step
        siblings = range(config.trainer.num_generations)
        requests = [problem for problem in problems[first : first + per_step] for _ in siblings]
        yield Batch(
            problems=[problem_id for problem_id, _ in requests],
            prompts=[prompt for _, prompt in requests],
            next_history_tick=history_tick(config.drafter.unit, step + 1, len(problems), per_step),
        )


def roll_out_steps(
    run: RolloutRun, engines: Engines | Cluster, problems: list[tuple[str, Prompt]]
) -> Iterator[tuple[list[Any], Rollout]]:
    """Roll out step after step. Yields what the engines say of the responses, and the measured Rollout of each."""
    from vllm import SamplingParams  # after prepare_process: vLLM reads the environment

    config = run.config
    parameters = SamplingParams(
        temperature=config.trainer.temperature, max_tokens=config.trainer.max_completion_length, logprobs=run.logprobs
    )
    schedule = make_schedule(config.schedule)
    for step, batch in enumerate(batches(config, problems, run.steps)):
        seeds = [request_seed(config.seed, step, index) for index in range(len(batch.prompts))]
        request = RolloutRequest(
            batch.prompts,
            parameters,
            batch.problems,
            seeds,
            step,
            next_history_tick=batch.next_history_tick,
            schedule=schedule,
        )
        yield engines.roll_out(request)


def record_rollouts(run: RolloutRun, run_folder: RunFolder, progress: Progress) -> list[dict[str, Any]]:
    """Build the engine, roll out and record every step. Returns the rows of metrics.jsonl."""
    prepare_process(run.config)
    settings = engine_settings(run.config, run.policy)
    engines: Engines | Cluster
    if run.config.cluster is not None:
        engine = run.config.engine
        engines = Cluster(EnginePool(run.config.cluster, settings, engine.kv_cache_gib, engine.threads))
    else:
        engines = build_in_process(settings)
    with closing(engines):
        return _recorded(run, engines, run_folder, progress)


def _recorded(
    run: RolloutRun, engines: Engines | Cluster, run_folder: RunFolder, progress: Progress
) -> list[dict[str, Any]]:
    problems = tokenized(run.config, run.policy)
    steps_per_epoch = sizes.steps_per_epoch(len(problems), run.config.problems_per_step)
    rows = []
    progress.start()
    for index, (_, rollout) in enumerate(roll_out_steps(run, engines, problems)):
        row = {
            "arm": run.config.arm.name,
            "step": index + 1,
            "epoch": index // steps_per_epoch,
            **rollout_row(rollout),
        }
        rows.append(row)
        record_step(run_folder, row, rollout, [None] * len(rollout.responses))
        progress.step(row)
    engines.save_history(run_folder.path / "history.npz")
    return rows
