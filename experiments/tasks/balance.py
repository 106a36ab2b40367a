"""task=balance: rollouts on several simulated engines. Which placement, by which lengths, and whose history?

Placement needs lengths only, so it is measured at full size, without speculation: round robin, random, longest first by
true lengths (what could be), by lengths predicted from earlier epochs (what can be), problems whole or siblings apart
(who draft from each other only where engines share a history). History is compared on texts, with the real drafter and
budget.
result.json: placement: rows of slots, placement, epoch, rollout_s, over_bound; history: rows of history, epoch,
tokens_per_pass, rollout_s.
"""

from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from das.budget import make_budget
from das.budget.remaining import RemainingLength
from das.drafter import HistoryDrafter
from das.replay.cluster import Step, place, predicted_lengths, simulate_rollout
from das.replay.engine import PlainEngine
from das.replay.synthesis import Synthesis
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from das.replay.workload import Workload, workload
from experiments.papers.replayed import sources
from experiments.recorded.latency_files import chosen_form
from experiments.recorded.rollouts import grouped
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError
from experiments.run.plain import plain
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

HOWS = {  # name -> placement, lengths it looks at, whether siblings stay on one engine
    "round robin": ("round_robin", "true", True),
    "random": ("random", "true", True),
    "longest first, true lengths": ("longest_first", "true", True),
    "longest first, predicted": ("longest_first", "predicted", True),
    "siblings apart, true lengths": ("longest_first", "true", False),
    "siblings apart, predicted": ("longest_first", "predicted", False),
}
LONGEST = 16384  # tokens: lengths are learned up to here (paper)


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Measure both; print a line each; write result.json."""
    task = config.task
    at_least_one(task, "engines", "batch", "group", "epochs", "steps")
    at_least_one(task, "history_engines", "history_batch", "history_group")
    for history in task.history:
        if history not in ("shared", "private"):
            raise UserError(f"task.history={history}: choose shared or private")
    if min(task.slots, default=0) < 1:
        raise UserError(f"task.slots={list(task.slots)}: an engine needs at least 1 slot")
    form, about = chosen_form(task.latency, str(task.gpu), str(task.model))
    recorded = sources(Path(task.traces), int(task.problems))
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    progress.note(f"time of a pass: {about}")
    times = Times(form)
    result = {
        "placement": placements(task, recorded, times, progress),
        "history": histories(task, plain(config.budget), recorded, times, progress),
    }
    progress.note(f"result: {run_folder.write_result(result)}")


def lengths_only(task: DictConfig, recorded: Workload, seed: int) -> list[Workload]:
    """Steps whose problems have the lengths of recorded ones; every epoch brings the same problems, drawn anew."""
    members: dict[str, list[int]] = {}
    for problem, length in zip(recorded.problems, recorded.lengths.tolist(), strict=True):
        members.setdefault(problem, []).append(length)
    random = np.random.default_rng(seed)
    homes = [list(members.values())[i] for i in random.integers(len(members), size=task.batch * task.steps)]
    works = []
    for _ in range(task.epochs):
        for step in range(task.steps):
            mine = range(step * task.batch, (step + 1) * task.batch)
            drawn = np.concatenate([random.choice(homes[problem], task.group) for problem in mine])
            names = [str(problem) for problem in mine for _ in range(task.group)]
            works.append(workload(names, [np.zeros(n, np.int32) for n in drawn]))
    return works


def placements(task: DictConfig, recorded: Workload, times: Times, progress: Progress) -> list[dict[str, Any]]:
    """Mean over an epoch's steps of rollout time, and of it over the bound that no placement beats."""
    works = lengths_only(task, recorded, seed=0)
    one = np.ones(2)
    plain_pass = times.form.predict(one, one, 0 * one)[0]
    rows = []
    for slots in task.slots:
        # What a request adds to a full pass, over what a pass costs alone.
        full = times.form.predict(slots * one, slots * one, 0 * one)[0]
        token = float(full - plain_pass) / max(1, slots - 1) / float(plain_pass)
        for name, (how, by, together) in HOWS.items():
            known = RemainingLength(LONGEST)
            steps: list[Step] = []
            for at, work in enumerate(works):
                lengths = work.lengths if by == "true" else predicted_lengths(known, work.problems)
                groups = work.problems if together else [str(i) for i in range(len(work))]
                placed = place(lengths, groups, int(task.engines), how, slots, token, seed=at)
                engines = [PlainEngine(times, slots) for _ in range(task.engines)]
                steps.append(simulate_rollout(work, engines, placed, at + 1))
                for problem, length in zip(work.problems, work.lengths.tolist(), strict=True):
                    known.observe(problem, length)
            for epoch in range(task.epochs):
                mine = steps[epoch * task.steps : (epoch + 1) * task.steps]
                row = {
                    "slots": slots,
                    "placement": name,
                    "epoch": epoch,
                    "rollout_s": float(np.mean([s.rollout_s for s in mine])),
                    "over_bound": float(np.mean([s.rollout_s / s.bound for s in mine])),
                    "over_mean_busy": float(np.mean([s.rollout_s / np.mean(s.busy_s) for s in mine])),
                }
                rows.append(row)
            last = rows[-1]
            progress.note(
                f"{slots} slots, {name:<28s} {last['rollout_s']:7.1f} s  over bound {last['over_bound']:.3f}  "
                f"over mean busy {last['over_mean_busy']:.3f}  (last epoch)"
            )
    return rows


def histories(
    task: DictConfig, budget: dict[str, Any], recorded: Workload, times: Times, progress: Progress
) -> list[dict[str, Any]]:
    """Problems go to engines anew each epoch (random): does an engine need what the others generated?"""
    epochs, batch, group = int(task.epochs), int(task.history_batch), int(task.history_group)
    whole = Synthesis(recorded, float(task.run_length)).make(batch, group * epochs, LONGEST, seed=4)
    works = grouped(whole, group, 0)
    rows = []
    for history in task.history:
        shared = HistoryDrafter()
        engines = [
            TextEngine(
                times,
                batch * group,
                shared if history == "shared" else HistoryDrafter(),
                make_budget(budget),
                LONGEST,
                name=f"{e}-",
            )
            for e in range(task.history_engines)
        ]
        for epoch, work in enumerate(works):
            placed = place(work.lengths, work.problems, len(engines), "random", seed=epoch)
            step = simulate_rollout(work, engines, placed, epoch + 1)
            rows.append(
                {
                    "history": history,
                    "epoch": epoch,
                    "tokens_per_pass": step.tokens_per_pass,
                    "rollout_s": step.rollout_s,
                }
            )
        mine = [row for row in rows if row["history"] == history]
        progress.note(
            f"{history:<8s} history: tokens/pass by epoch "
            + " ".join(f"{row['tokens_per_pass']:.2f}" for row in mine)
            + f"  rollout {sum(row['rollout_s'] for row in mine):.1f} s in all"
        )
    return rows
