"""task=train: train one arm, in as many processes as engine.processes says. task=rollout: roll out with one arm,
without training: the policy stays the same, the drafter's history grows."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from analysis import read
from analysis.metrics import cluster_result, summarised
from das.cluster.cluster import Cluster
from das.cluster.pool import EnginePool
from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed
from das.engine.settings import EXACT
from das.general import ranks
from das.general.files import write_text
from das.trl.dataset_rows import history_tick
from das.trl.engines import Engines
from experiments.arm import resume
from experiments.arm.data import Prompt, dataset, tokenized_rows
from experiments.arm.engine import engine_settings, make_schedule, prepare_process
from experiments.arm.models import policy_directory
from experiments.arm.train_arm import ArmRun, check_drafted, make_parts, train_arm
from experiments.arm.validate import check, check_processes
from experiments.run import environment
from experiments.run.errors import one_line_failure
from experiments.run.progress import Barrier, Progress, quiet_into
from experiments.run.run_folder import RunFolder, own_file, rollout_row
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig, steps_per_epoch
from experiments.training.engines import build_in_process, save_history


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Train the arm and print a line for each step. Only the main process prints; every process writes a log."""
    path = Path(folder)
    progress = Progress(config.trainer.max_steps)
    if not ranks.is_main():
        progress.terminal = open(os.devnull, "w")  # noqa: SIM115  it stays open until the process ends
    start = 0
    with environment.main_first():
        check_processes(config)
        check(config)
        if ranks.fsdp_on_cpu():
            progress.note("FSDP 2: accelerate has none on a CPU, so torch's fully_shard shards the policy")
        if config.resume is not None and ranks.is_main():
            start = resume.newest({path: config}, progress.note)
            resume.rewind(path, start)
            resume.announce(path, start, progress)
        if ranks.is_main():
            resume.remember(path, composed.overrides)
        policy = make_parts([config], progress.note)
        progress.note(EXACT[config.engine.exact])
    start = ranks.gather(start)[0]
    group = config.task.group or path.name
    log = path / "log.txt"
    with one_line_failure(log, partial(resume.hint, path)), quiet_into(own_file(log)) as terminal:
        if ranks.is_main():
            progress.terminal = terminal
        with progress.starting(config.arm.name, log):
            train_arm(ArmRun(config, policy, path, group, Barrier(progress.step), start=start))
    if not ranks.is_main():
        return
    progress.terminal = sys.stdout
    metrics = read.metrics(path)
    result = {"baseline": config.arm.name, "arms": {config.arm.name: summarised(metrics)}, **cluster_result(metrics)}
    write_text(path / "result.json", json.dumps(result, indent=1))
    progress.note(f"run: {folder}")


def roll_out(config: RunConfig, composed: Composed, folder: str) -> None:
    """Roll out `task.steps` batches of prompts. Prints a line for each batch and writes result.json."""
    check(config)
    progress = Progress(config.task.steps)
    policy = policy_directory(config, progress.note)
    rows = dataset(config, policy, progress.note)
    run_folder = RunFolder(Path(folder), config.with_problems(len(rows)).resolved)
    log = Path(folder) / "log.txt"
    with quiet_into(log) as progress.terminal, progress.starting(config.arm.name, log):
        metrics = record_rollouts(config, policy, rows, run_folder, progress)
    progress.terminal = sys.stdout
    check_drafted(config, metrics)
    result = {"arms": {config.arm.name: summarised(metrics)}, **cluster_result(metrics)}
    progress.note(f"result: {run_folder.write_result(result)}")


def record_rollouts(
    config: RunConfig, policy: str, data: Dataset, run_folder: RunFolder, progress: Progress
) -> list[dict[str, Any]]:
    """Build the engine, roll out and record every step. Returns the rows of metrics.jsonl. policy: directory or hub id.
    data: the problems."""
    prepare_process(config)
    settings, problems = engine_settings(config, policy), tokenized_rows(config, policy, data)
    engines: Engines | Cluster
    if config.cluster is not None:
        engines = Cluster(EnginePool(config.cluster, settings, config.engine.threads or 1))
    else:
        engines = build_in_process(settings)
    in_epoch = steps_per_epoch(len(problems), config.problems_per_step)
    rows = []
    with closing(engines):
        progress.start()
        for request in requests(config, problems):
            rolled_out = engines.roll_out(request)
            rollout = rolled_out if isinstance(rolled_out, Rollout) else rolled_out[1]
            row = {"arm": config.arm.name, "step": request.step + 1, "epoch": request.step // in_epoch}
            row |= rollout_row(rollout)
            rows.append(row)
            run_folder.add_step(row, rollout, [None] * len(rollout.responses))
            progress.step(row)
        save_history(engines, run_folder.path / "history.npz")
    return rows


def requests(config: RunConfig, problems: list[tuple[str, Prompt]]) -> Iterator[RolloutRequest]:
    """Yield one RolloutRequest for each step. Every epoch goes through the problems in the same order."""
    from vllm import SamplingParams  # after prepare_process: vLLM reads the environment

    trainer, per_step = config.trainer, config.problems_per_step
    parameters = SamplingParams(temperature=trainer.temperature, max_tokens=trainer.max_completion_length, logprobs=0)
    schedule = make_schedule(config.schedule)
    for step in range(config.task.steps):
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
