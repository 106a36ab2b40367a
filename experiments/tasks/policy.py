"""task=policy: sample responses from the small policy, and compare them with recorded rollouts of real models and with
numbers from the papers. With task.kind, train a small policy anew instead.

result.json: `figures` has statistics of the policy: median_length, p99_over_median, ..., correct (docs/metrics.md), its
histogram of lengths and accepted_by_epoch. `references` has the same statistics of `recorded` traces and of `papers`,
and the `wanted` ones: targets for the small policy. More rates and lengths of the policy are at the top level.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from yaml import safe_load

from analysis.arms import aligned
from analysis.likeness_figure import likeness_figure
from experiments.harness.config import RunConfig, run_config
from experiments.harness.data import split_rows
from experiments.harness.evaluation.held_out import renamed_keys
from experiments.harness.policies import policy_directory
from experiments.harness.validate import check
from experiments.recorded.likeness import EDGES, EPOCHS, FIGURES, PAPERS, SIBLINGS, likeness
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

COLUMNS = {  # header of the table -> name of the figure, and its number format
    "median": ("median_length", ".0f"),
    "p99/median": ("p99_over_median", ".2f"),
    "longest/median": ("longest_over_median", ".2f"),
    "longest": ("longest", ".0f"),
    "longest/mean": ("longest_over_mean", ".2f"),
    "entropy": ("entropy", ".3f"),
    f"accepted a round (epochs 1-{EPOCHS})": ("accepted_per_round", ".2f"),
    "siblings alike": ("similarity", ".2f"),
    "correct": ("correct", ".2f"),
}


def run(composed: DictConfig, overrides: list[str], folder: str) -> None:
    """Sample responses to the training's problems. Prints and draws statistics of these responses, beside those of
    recorded traces and papers. With task.kind, train and write a policy."""
    at_least_one(composed.task, "problems")
    config = run_config(composed)
    if config.task["kind"] is not None:
        _train(config, RunFolder(Path(folder), config.resolved))
        return
    check(config, in_steps=False)
    problems, samples = config.task["problems"], config.task["samples"]
    if config.data.judged_by != "maths":
        raise UserError(f"data={config.data.name}: task=policy judges answers, not programs: choose a set for maths")
    if samples < SIBLINGS or samples % SIBLINGS:
        raise UserError(f"task.samples={samples}: must be a multiple of {SIBLINGS}, one epoch's responses to a problem")
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
    ids = [np.asarray(response, np.int32) for response in measured.pop("ids")]
    responses = [ids[first : first + samples] for first in range(0, len(ids), samples)]
    own = likeness([(row["problem_id"], group) for row, group in zip(rows, responses, strict=True)])
    own |= {"entropy": measured["entropy_nats"], "correct": measured["correct"]}
    recorded = json.loads(FIGURES.read_text())
    published = safe_load(PAPERS.read_text())
    progress.note(likeness_table(own, recorded, published))
    likeness_figure({"small policy": own, **recorded}, EDGES.tolist(), Path(folder) / "likeness.png")
    progress.note(f"figure: {folder}/likeness.png")
    numbers = {key: value for key, value in measured.items() if isinstance(value, int | float)}
    references = {"recorded": recorded, **published}
    result = {**numbers, "figures": own, "references": references, "policy": policy}
    progress.note(f"result: {run_folder.write_result(result)}")


def _train(config: RunConfig, run_folder: RunFolder) -> None:
    """Train the small policy of this kind anew, and write it into the run's folder. Raises UserError."""
    import torch

    from experiments.small_policy.train import RECIPES, ship

    kind, progress = config.task["kind"], Progress(0)
    if kind not in RECIPES:
        raise UserError(f"task.kind={kind}: choose {', '.join(RECIPES)}, or null to measure a policy")
    torch.set_num_threads(config.engine.threads)
    began = time.perf_counter()
    policy = run_folder.path / kind
    ship(RECIPES[kind], policy, progress.note)
    progress.note(f"policy: {policy}")
    result = {"policy": str(policy), "trained_s": time.perf_counter() - began}
    progress.note(f"result: {run_folder.write_result(result)}")


def likeness_table(
    own: Mapping[str, Any], recorded: Mapping[str, Any], published: Mapping[str, Mapping[str, Any]]
) -> str:
    """Make a table of statistics: of the policy, our targets for it (wanted), recorded traces, and the papers.

    own, recorded, published: the statistics. A cell is "-" if a statistic was not recorded or published.
    """
    lines = {"small policy": own, "wanted": published["wanted"], **recorded, **published["papers"]}
    cells = [[name, *(shown(line.get(key), form) for key, form in COLUMNS.values())] for name, line in lines.items()]
    return f"\n{aligned([['rollouts of', *COLUMNS], *cells])}\n"


def shown(value: float | list[float] | None, form: str) -> str:
    """Return a number or a range [from, to] as text; "-" for None. form: format of a number, such as ".2f"."""
    if value is None:
        return "-"
    if not isinstance(value, list):
        return format(value, form)
    low, high = (format(bound, "g") for bound in value)
    return f"at least {low}" if high == "inf" else f"{low} to {high}"
