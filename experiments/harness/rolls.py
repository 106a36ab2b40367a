"""Rollouts without training: prompts by step, rolled out by one engine."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from omegaconf import DictConfig

from experiments.harness import setup
from experiments.harness.arm import rollout_rows
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder


def tokenized(config: DictConfig, policy: str) -> list[tuple[str, Any]]:
    """(problem id, prompt) of every problem of the data."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)
    return [
        (
            row["problem_id"],
            {
                "prompt_token_ids": tokenizer.apply_chat_template(
                    row["prompt"], add_generation_prompt=True, return_dict=False, **config.trainer.chat_template_kwargs
                )
            },
        )
        for row in setup.dataset(config, policy)
    ]


def batches(config: DictConfig, policy: str) -> Iterator[tuple[list[tuple[str, Any]], int]]:
    """Step after step: (problem id, prompt) of each request, and the drafter's clock once the step is over."""
    problems = tokenized(config, policy)
    siblings = config.trainer.num_generations
    problems_per_step = setup.problems_per_step(config)
    steps_per_epoch = max(1, len(problems) // problems_per_step)
    unit_steps = steps_per_epoch if config.drafter.unit == "epoch" else 1
    for step in count():
        first = step % steps_per_epoch * problems_per_step
        requests = [problem for problem in problems[first : first + problems_per_step] for _ in range(siblings)]
        yield requests, (step + 1) // unit_steps


def rolled(config: DictConfig, policy: str, llm: Any, logprobs: int) -> Iterator[tuple[list[Any], Any]]:
    """Roll out `task.steps` batches: vLLM's outputs and the measured Rollout of each."""
    from vllm import SamplingParams

    from das.engine.rollout import RolloutRequest, request_seed, roll_out

    params = SamplingParams(
        temperature=config.trainer.temperature, max_tokens=config.trainer.max_completion_length, logprobs=logprobs
    )
    schedule = setup.schedule(config)
    for step, (batch, clock) in zip(range(config.task.steps), batches(config, policy), strict=False):
        problems, prompts = zip(*batch, strict=True)
        seeds = [request_seed(config.seed, step, i) for i in range(len(batch))]
        yield roll_out(
            llm, RolloutRequest(prompts, params, problems, seeds, step, next_history_tick=clock, schedule=schedule)
        )


def roll_steps(config: DictConfig, policy: str, run_folder: RunFolder, progress: Progress) -> list[dict[str, Any]]:
    """Build the engine, roll out `task.steps` batches; one row of metrics each."""
    setup.prepare(config)
    from das.engine.build import build_engine
    from das.engine.rollout import rollout_row

    llm = build_engine(setup.engine_settings(config, policy))
    steps_per_epoch = max(1, config.data.problems // setup.problems_per_step(config))
    metrics = []
    progress.start()
    for step, (_, rollout) in enumerate(rolled(config, policy, llm, logprobs=0)):
        row = {"arm": config.arm.name, "step": step + 1, "epoch": step // steps_per_epoch, **rollout_row(rollout)}
        metrics.append(row)
        run_folder.add_metrics(row)
        run_folder.add_rollout(step + 1, rollout_rows(rollout, [None] * len(rollout.responses)))
        run_folder.add_timeline(step + 1, {k: v for k, v in rollout.report.items() if k.startswith(("step_", "pass_"))})
        progress.step(row)
    llm.collective_rpc("das_save_history", args=(str(run_folder.path / "history.npz"),))
    return metrics
