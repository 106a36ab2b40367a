"""Roll out without training: make the requests of each step, roll them out and record them."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from das.cluster.cluster import Cluster
from das.cluster.pool import EnginePool
from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed
from das.trl.dataset_rows import history_tick
from das.trl.engines import Engines
from experiments.arm.data import dataset
from experiments.arm.engine import engine_settings, make_schedule, prepare_process
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, rollout_row
from experiments.settings.config import RunConfig, steps_per_epoch
from experiments.training.engines import build_in_process, save_history

Prompt = dict[str, list[int]]  # {"prompt_token_ids": token ids}, as vLLM takes it


@dataclass(frozen=True)
class RolloutRun:
    """The settings of a series of rollouts with one arm, without training."""

    config: RunConfig
    policy: str  # directory or hub id
    steps: int  # how many rollouts, each over the prompts of a training step


def tokenized(config: RunConfig, policy: str) -> list[tuple[str, Prompt]]:
    """Return (problem id, prompt) of every problem of the data. policy: its tokenizer is used."""
    return tokenized_rows(config, policy, dataset(config, policy))


def tokenized_rows(config: RunConfig, policy: str, rows: Iterable[dict[str, Any]]) -> list[tuple[str, Prompt]]:
    """Return (problem id, prompt) of every row. policy: its tokenizer is used."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)

    def token_ids(conversation: Any) -> list[int]:
        ids: list[int] = tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, return_dict=False, **config.trainer.chat_template_kwargs
        )
        return ids

    return [(row["problem_id"], {"prompt_token_ids": token_ids(row["prompt"])}) for row in rows]


def requests(run: RolloutRun, problems: list[tuple[str, Prompt]]) -> Iterator[RolloutRequest]:
    """Yield one RolloutRequest for each step. Every epoch goes through the problems in the same order."""
    from vllm import SamplingParams  # after prepare_process: vLLM reads the environment

    config, trainer = run.config, run.config.trainer
    parameters = SamplingParams(temperature=trainer.temperature, max_tokens=trainer.max_completion_length, logprobs=0)
    schedule = make_schedule(config.schedule)
    per_step = config.problems_per_step
    for step in range(run.steps):
        first = step % steps_per_epoch(len(problems), per_step) * per_step
        asked = [problem for problem in problems[first : first + per_step] for _ in range(trainer.num_generations)]
        yield RolloutRequest(
            [prompt for _, prompt in asked],
            parameters,
            [problem_id for problem_id, _ in asked],
            [request_seed(config.seed, step, index) for index in range(len(asked))],
            step,
            next_history_tick=history_tick(config.drafter.unit, step + 1, len(problems), per_step),
            schedule=schedule,
        )


def record_rollouts(run: RolloutRun, run_folder: RunFolder, progress: Progress) -> list[dict[str, Any]]:
    """Build the engine, roll out and record every step. Returns the rows of metrics.jsonl."""
    prepare_process(run.config)
    settings = engine_settings(run.config, run.policy)
    problems = tokenized(run.config, run.policy)
    engines: Engines | Cluster
    if run.config.cluster is not None:
        engine = run.config.engine
        engines = Cluster(EnginePool(run.config.cluster, settings, engine.threads or 1))
    else:
        engines = build_in_process(settings)
    in_epoch = steps_per_epoch(len(problems), run.config.problems_per_step)
    rows = []
    with closing(engines):
        progress.start()
        for request in requests(run, problems):
            rolled_out = engines.roll_out(request)
            rollout = rolled_out if isinstance(rolled_out, Rollout) else rolled_out[1]
            row = {"arm": run.config.arm.name, "step": request.step + 1, "epoch": request.step // in_epoch}
            row |= rollout_row(rollout)
            rows.append(row)
            run_folder.add_step(row, rollout, [None] * len(rollout.responses))
            progress.step(row)
        save_history(engines, run_folder.path / "history.npz")
    return rows
