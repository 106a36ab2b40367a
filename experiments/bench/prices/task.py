"""task=bench_prices: what does a budget save where nobody told it the prices?

Each curve is a made-up time of a pass: a line, a knee, stairs, or one of them with noise and interruptions, with drift,
or with bursts of other work. Every curve has one rollout of a replayed engine in which the budget is new, so it learns
the prices from the first pass on. The drafts are those of the history drafter on generated text, some of which repeats
itself less than other text. Three arms roll out the same text: no speculation, the configured budget, and an oracle,
which is `marginal` with the curve itself in place of learned prices. Arms are compared by the curve's own times; only
what the budget sees is noisy.

result.json: curves (n), worst (the largest time / that of none), over_3_percent (curves on which it is above 1.03),
median_share and total_share (of the oracle's saving, over curves on which the oracle saves 2 % or more; the median, and
the ratio of sums over all curves), kinds.KIND.{worst, median_share, mean, oracle_mean}, fewest_passes (of the budget's
rollouts), rows (one each curve).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from analysis.prices_figure import prices_figure
from das.budget import BudgetPolicy, make_budget
from das.budget.marginal import Marginal
from experiments.bench.prices.curves import KINDS, make_curve
from experiments.bench.prices.rollouts import Clock, KnownPrices, Recorded, record, roll_out
from experiments.recorded.drafter_replay import made_up_problems
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError
from experiments.run.plain import plain
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

PROBLEMS, EARLIER, GROUP = 4, 8, 8  # of the generated text: problems, responses in the history, responses replayed
LONGEST = 1.75  # times task.tokens: no response is longer
SAVES = 0.02  # an oracle that saves less of the time is no measure


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Replay every curve with the three arms; print a line per kind, write result.json and a figure."""
    task = config.task
    at_least_one(task, "curves", "tokens")
    if task.first < 0:
        raise UserError(f"task.first={task.first}: seeds must not be negative")
    if not task.live or min(task.live) < 1 or max(task.live) > PROBLEMS * GROUP * 2:
        raise UserError(f"task.live={list(task.live)}: name numbers from 1 to {PROBLEMS * GROUP * 2}")
    if not task.replaced or not all(0 <= share <= 1 for share in task.replaced):
        raise UserError(f"task.replaced={list(task.replaced)}: name shares from 0 to 1")
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    texts = {float(share): text(float(share), int(LONGEST * task.tokens)) for share in task.replaced}
    rows = []
    for seed in range(int(task.first), int(task.first) + int(task.curves)):
        rows.append(compare(seed, texts, task, plain(config.budget)))
        run_folder.add_metrics(rows[-1])
        if len(rows) % 20 == 0:
            progress.note(f"{len(rows)} of {task.curves} curves; worst so far {max(row['ratio'] for row in rows):.3f}")
    result = summary(rows)
    for kind, measured in result["kinds"].items():
        progress.note(
            f"{kind:8s} time / none: mean {measured['mean']:.3f}, oracle {measured['oracle_mean']:.3f}, worst "
            f"{measured['worst']:.3f}; median share of the oracle's saving {measured['median_share']:.3f}"
        )
    progress.note(
        f"all      worst {result['worst']:.3f}; median share of the oracle's saving {result['median_share']:.3f}, of "
        f"all savings {result['total_share']:.3f}; at least {result['fewest_passes']} passes a rollout"
    )
    prices_figure(rows, Path(folder) / "prices.png")
    progress.note(f"result: {run_folder.write_result(result)}")


def text(replaced: float, length: int) -> list[Recorded]:
    """Responses with the drafts for them. This share of their tokens is replaced by random ones."""
    problems = made_up_problems(PROBLEMS, EARLIER + GROUP, length, seed=3)
    rng = np.random.default_rng(5)
    for _, responses in problems:
        for response in responses:
            wrong = rng.random(length) < replaced
            response[wrong] = rng.integers(0, 100_000, wrong.sum())
    return record(problems, EARLIER)


def compare(seed: int, texts: dict[float, list[Recorded]], task: DictConfig, budget: dict[str, Any]) -> dict[str, Any]:
    """The three arms at one curve: a row of metrics."""
    rng = np.random.default_rng([seed, 3])
    live, replaced = int(rng.choice(list(task.live))), float(rng.choice(list(texts)))
    responses = texts[replaced]
    lengths = np.clip(task.tokens * rng.lognormal(0, 0.25, live), 0.4 * task.tokens, LONGEST * task.tokens)
    recorded = []
    for i, length in zip(rng.permutation(2 * len(responses))[:live] % len(responses), lengths.astype(int), strict=True):
        start = int(rng.integers(0, int(LONGEST * task.tokens) - length + 1))
        recorded.append(responses[i].part(start, max(1, length)))
    curve = make_curve(seed, live)

    def seconds(policy: BudgetPolicy, knows: bool = False) -> tuple[float, int]:
        clock = Clock(curve, seed)
        if knows:
            assert isinstance(policy, Marginal)
            policy.prices = KnownPrices(clock)
        roll_out(recorded, clock, policy)
        return clock.seconds, len(clock.passes)

    none, plain_passes = seconds(make_budget({"name": "none"}))
    oracle, _ = seconds(Marginal(), knows=True)
    ours, passes = seconds(make_budget(budget))
    return {
        "seed": seed,
        "kind": curve.kind,
        "live": live,
        "replaced": replaced,
        "ratio": ours / none,
        "oracle": oracle / none,
        "share": (none - ours) / (none - oracle) if none - oracle > SAVES * none else None,
        "passes": passes,
        "plain_passes": plain_passes,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result without rows' details; see the module."""
    kinds = {kind: chosen for kind in KINDS if (chosen := [row for row in rows if row["kind"] == kind])}
    ratios, oracles = (np.array([row[key] for row in rows]) for key in ("ratio", "oracle"))
    return {
        "curves": len(rows),
        "worst": float(ratios.max()),
        "over_3_percent": int((ratios > 1.03).sum()),
        "median_share": _median_share(rows),
        "total_share": float((1 - ratios).sum() / max(1e-9, (1 - oracles).sum())),
        "fewest_passes": min(row["passes"] for row in rows),
        "kinds": {
            kind: {
                "worst": max(row["ratio"] for row in chosen),
                "median_share": _median_share(chosen),
                "mean": float(np.mean([row["ratio"] for row in chosen])),
                "oracle_mean": float(np.mean([row["oracle"] for row in chosen])),
            }
            for kind, chosen in kinds.items()
        },
        "rows": list(rows),
    }


def _median_share(rows: Sequence[dict[str, Any]]) -> float:
    shares = [row["share"] for row in rows if row["share"] is not None]
    return float(np.median(shares)) if shares else float("nan")
