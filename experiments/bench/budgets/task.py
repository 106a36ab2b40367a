"""task=bench_budgets: which budget makes rollouts shortest?

There are two engines, each in its own process. One does not speculate. In the other, the budget policies take turns,
rollout by rollout; each has its own drafter and history of past responses. All roll out the same requests with the same
noise, so all must emit the same tokens, which is checked.

result.json: WORKLOAD.POLICY.{ratio, quartiles, computed ...} and cost_us.
ratio      sum of rollout times / the sum without speculation; the quartiles are over the ratios of single rollouts
computed   the ratio without the machine's noise: times are computed from the counts of passes, of requests in them, of
           passes that draft and of drafted tokens, at prices that are fitted to all rollouts
cost_us    processor time that a budget's decisions take, measured on made-up drafts

WORKLOAD/POLICY/rollouts/ holds the timeline of each rollout.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from analysis.task_figures import budgets_figure
from experiments.bench.budgets.cost import cost_us
from experiments.bench.budgets.workloads import Requests, requests_of, rollouts, untrained, with_tokenizer
from experiments.harness.engine import engine_settings
from experiments.harness.policies import policy_directory
from experiments.harness.replays.timed import BASELINE, TimedEngines
from experiments.replay.latency_forms import linear
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, write_timeline
from experiments.settings.compose import compose_config
from experiments.settings.config import RunConfig, run_config


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Roll out every workload with every budget policy. Prints a line for each policy; writes result.json and a
    figure."""
    task = config.task
    arms = policy_arms(task, overrides)
    workloads = {f"live_{live}": requests_of(config, int(live), hopeless=False) for live in task.live}
    if task.hopeless:
        workloads["hopeless"] = requests_of(config, int(task.hopeless_live), hopeless=True)
    budgets = {
        label: engine_settings(run_config(arm), "unnamed").budget for label, arm in arms.items() if label != BASELINE
    }
    progress = Progress(int(task.steps), len(arms) * len(workloads))
    run_folder = RunFolder(Path(folder), config.resolved)
    costs = {label: {str(n): cost_us(budget, int(n)) for n in task.cost_live} for label, budget in budgets.items()}
    for label, cost in costs.items():
        by_live = "   ".join(f"{live}: {us:.1f}" for live, us in cost.items())
        progress.note(f"{label:18s} processor time, us per pass, by live requests: {by_live}")
    if not workloads:
        progress.note(f"result: {run_folder.write_result({'cost_us': costs})}")
        return
    policy = policy_directory(config, progress.note)
    if task.shape is not None:
        policy = with_tokenizer(str(task.shape), policy, Path(config.cache))
    progress.note(f"starting 2 engines; {', '.join(arms)} on {', '.join(workloads)}; logs in {folder}")
    rows = roll_workloads(config, arms, workloads, policy, run_folder, progress)
    prices = pass_prices(rows)
    progress.note(
        "seconds per pass, request, pass that drafts, drafted token: " + ", ".join(f"{p:.2e}" for p in prices)
    )
    result = {name: measure([row for row in rows if row["workload"] == name], [*arms], prices) for name in workloads}
    for name, measured in result.items():
        progress.note(f"{name}:")
        for label, row in sorted(measured.items(), key=lambda item: item[1]["ratio"]):
            low, high = row["quartiles"]
            progress.note(
                f"    {label:16s}{row['ratio']:.3f} [{low:.3f}, {high:.3f}] of none   computed {row['computed']:.3f}   "
                f"tokens/pass {row['tokens_per_pass']:5.2f}   drafted {row['drafted']:7d}   accepted "
                f"{row['accepted']:7d}"
            )
    budgets_figure(result, Path(folder) / "budgets.png")
    progress.note(f"result: {run_folder.write_result({**result, 'cost_us': costs})}")


def policy_arms(task: Any, overrides: Sequence[str]) -> dict[str, DictConfig]:
    """Return label -> config of each budget policy that is to run. The policy without speculation is the first."""
    labels = [str(label) for label in task.only or task.policies]
    unknown = [label for label in labels if label not in task.policies]
    if unknown or not labels or BASELINE in labels:
        raise UserError(
            f"task.only={labels}: choose from {', '.join(task.policies)}; `{BASELINE}` (no speculation) always runs"
        )
    others = [override for override in overrides if not override.startswith("arm=")]
    arms = {BASELINE: compose_config([*others, "arm=none"])}
    for label in labels:
        own = list(task.policies[label])
        names_arm = any(override.startswith("arm=") for override in own)
        arms[label] = compose_config([*others, *([] if names_arm else ["arm=das"]), *own])
    return arms


def roll_workloads(
    config: RunConfig,
    arms: Mapping[str, DictConfig],
    workloads: Mapping[str, Requests],
    policy: str,
    run_folder: RunFolder,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Roll out all workloads. Returns the rows of metrics of all rollouts. Hopeless workloads, in which no draft can be
    accepted, get engines with untrained weights."""
    rows: list[dict[str, Any]] = []
    max_num_seqs = max(requests.live for requests in workloads.values())
    for hopeless in (False, True):
        chosen = {name: requests for name, requests in workloads.items() if requests.hopeless == hopeless}
        if not chosen:
            continue
        weights = untrained(policy, run_folder.path / "untrained") if hopeless else policy
        drafting = {label: arm for label, arm in arms.items() if label != BASELINE}
        two = {"plain": {BASELINE: arms[BASELINE]}, "drafting": drafting}
        warm_up = {"warm-up": requests_of(config, int(config.trainer.num_generations), hopeless=False)}
        with closing(TimedEngines(two, weights, {"max_num_seqs": max_num_seqs}, run_folder.path)) as engines:
            engines.ready()
            for work in rollouts(config, warm_up, 1, weights):
                for label in (BASELINE, next(iter(drafting))):
                    engines.roll_out(label, work)
            if not progress.done:
                progress.start()
            for work, label, timed in engines.in_turns(rollouts(config, chosen, int(config.task.steps), weights)):
                rows.append(timed.row)
                folder = run_folder.path / work.history / label
                (folder / "rollouts").mkdir(parents=True, exist_ok=True)
                write_timeline(folder, timed.row["step"], timed.timeline)
                run_folder.add_metrics(timed.row)
                progress.step(timed.row)
    return rows


def measure(rows: Sequence[dict[str, Any]], labels: Sequence[str], prices: np.ndarray) -> dict[str, Any]:
    """Return a dict of results for each label: rollout times, measured and computed from `prices`, and token counts.

    rows: the rows of one workload. prices: the result of pass_prices.
    """
    computed = {label: sum(float(prices @ _counts(row)) for row in rows if row["arm"] == label) for label in labels}
    seconds = {label: np.array([row["rollout_s"] for row in rows if row["arm"] == label]) for label in labels}
    measured = {}
    for label in labels:
        of_policy = [row for row in rows if row["arm"] == label]
        ratios = seconds[label] / seconds[BASELINE]
        measured[label] = {
            "n": len(of_policy),
            "rollout_s": float(seconds[label].sum()),
            "ratio": float(seconds[label].sum() / seconds[BASELINE].sum()),
            "computed": computed[label] / computed[BASELINE],
            "quartiles": [float(q) for q in np.quantile(ratios, [0.25, 0.75])],
            "median_ratio": float(np.median(ratios)),
            "tokens_per_pass": sum(row["tokens"] for row in of_policy) / sum(row["passes"] for row in of_policy),
            "drafted": sum(row["drafted"] for row in of_policy),
            "accepted": sum(row["accepted"] for row in of_policy),
        }
    return measured


def _counts(row: dict[str, Any]) -> np.ndarray:
    return np.array([row["decode_steps"], row["live_sum"], row["drafted_steps"], row["drafted"]], float)


def pass_prices(rows: Sequence[dict[str, Any]]) -> np.ndarray:
    """Return four prices in seconds: per pass, per live request in it, per pass that drafts, per drafted token.

    They minimise the sum of absolute relative errors of the rows' rollout times, by reweighted least squares.
    """
    counts, seconds = np.stack([_counts(row) for row in rows]), np.array([row["rollout_s"] for row in rows])
    weights = 1 / np.square(seconds)
    for _ in range(20):
        prices = linear(counts, seconds, weights)
        weights = 1 / (np.square(seconds) * np.maximum(np.abs(counts @ prices / seconds - 1), 1e-3))
    return prices
