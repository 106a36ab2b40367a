"""task=policy: sample responses from the small policy, and say how long, how random and how often right they are. With
task.kind, train a small policy anew instead.

result.json: correct, truncated, entropy_nats, and lengths of the responses.
"""

import time
from pathlib import Path

from experiments.harness.data import split_rows
from experiments.harness.evaluation.held_out import renamed_keys
from experiments.harness.policies import policy_directory
from experiments.harness.validate import check
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.config import RunConfig


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Sample responses to the training's problems, and print their statistics. With task.kind, train and write a
    policy."""
    if config.task.kind is not None:
        _train(config, RunFolder(Path(folder), config.resolved))
        return
    check(config, in_steps=False)
    problems, samples = config.task.problems, config.task.samples
    if config.data.judged_by != "maths":
        raise UserError(f"data={config.data.name}: task=policy judges answers, not programs: choose a set for maths")
    config = config.with_problems(problems)
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config.resolved)
    policy = policy_directory(config, progress.note)
    with renamed_keys({"data.problems": "task.problems"}):
        chosen, summary, _ = split_rows(config.data, "training", config, policy)
    if summary:
        progress.note(summary)
    rows = chosen.to_list()
    from experiments.small_policy.measure import measure_policy

    progress.note(f"sampling {len(rows)} problems x {samples} responses")
    measured = measure_policy(
        Path(policy),
        rows,
        samples=samples,
        temperature=config.trainer.temperature,
        max_tokens=config.trainer.max_completion_length,
        seed=config.seed,
    )
    numbers = {key: value for key, value in measured.items() if isinstance(value, int | float)}
    progress.note("  ".join(f"{key} {value:.4g}" for key, value in numbers.items()))
    progress.note(f"result: {run_folder.write_result({**numbers, 'policy': policy})}")


def _train(config: RunConfig, run_folder: RunFolder) -> None:
    """Train the small policy of this kind anew, and write it into the run's folder. Raises UserError."""
    import torch

    from experiments.small_policy.train import RECIPES, ship

    kind, progress = config.task.kind, Progress(0)
    if kind not in RECIPES:
        raise UserError(f"task.kind={kind}: choose {', '.join(RECIPES)}, or null to measure a policy")
    torch.set_num_threads(config.engine.threads)
    began = time.perf_counter()
    policy = run_folder.path / kind
    ship(RECIPES[kind], policy, progress.note)
    progress.note(f"policy: {policy}")
    result = {"policy": str(policy), "trained_s": time.perf_counter() - began}
    progress.note(f"result: {run_folder.write_result(result)}")
