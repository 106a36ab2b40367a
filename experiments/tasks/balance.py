"""task=balance: rollouts on several simulated engines. Which placement, by which lengths, and whose history?

Placement needs lengths only, so it is simulated at full size, without speculation: round robin; random; longest first
by true lengths (the ideal) or by lengths predicted from earlier epochs (what is possible); a problem's siblings on one
engine or anywhere. Siblings on different engines can draft from each other only if the engines share a history.
Histories are compared on texts, with the real drafter and budget.

result.json: placement: rows of slots (max_num_seqs), placement, epoch, rollout_s, over_bound; history: rows of history,
epoch, tokens_per_pass, rollout_s.
"""

from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from das.budget import make_budget
from das.budget.remaining import RemainingLength
from das.cluster.dispatcher import Dispatcher, Request
from das.drafter import HistoryDrafter
from das.replay.cluster import Step, place, predicted_lengths, simulate_rollout
from das.replay.dispatched import simulate_dispatched
from das.replay.engine import PlainEngine
from das.replay.synthesis import Synthesis
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from das.replay.workload import Workload, workload
from experiments.recorded.chains_of_thought import chains_of_thought
from experiments.recorded.latency_files import chosen_form
from experiments.recorded.rollouts import grouped
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError
from experiments.run.plain import plain
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

# name -> how, and by which lengths. Requests are placed at the start (das.replay.cluster.place), or while the rollout
# runs: by NaiveQueue, or by the cluster's Dispatcher.
PLACEMENTS = {
    "round robin": ("round_robin", "none"),
    "static, predicted": ("longest_first", "predicted"),
    "static, true lengths": ("longest_first", "true"),
    "naive queue, predicted": ("queue", "predicted"),
    "dispatcher, predicted": ("dispatcher", "predicted"),
    "dispatcher, true lengths": ("dispatcher", "true"),
}
MAX_TOKENS = 16384  # of a response (paper)


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Compare placements, then histories; print a line for each and write result.json."""
    task = config.task
    at_least_one(task, "engines", "batch", "group", "epochs", "steps")
    at_least_one(task, "history_engines", "history_batch", "history_group")
    for history in task.history:
        if history not in ("shared", "private"):
            raise UserError(f"task.history={history}: choose shared or private")
    if min(task.max_num_seqs, default=0) < 1:
        raise UserError(f"task.max_num_seqs={list(task.max_num_seqs)}: an engine decodes at least 1 request at once")
    form, source = chosen_form(task.latency, str(task.gpu), str(task.model))
    recorded = chains_of_thought(Path(task.traces), int(task.problems))
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    progress.note(f"time of a pass: {source}")
    times = Times(form)
    result = {
        "placement": placements(task, recorded, times, progress),
        "history": histories(task, plain(config.budget), recorded, times, progress),
    }
    progress.note(f"result: {run_folder.write_result(result)}")


def lengths_only(task: DictConfig, recorded: Workload, seed: int) -> list[Workload]:
    """Steps of all epochs, without text. Each problem's lengths are drawn from those of one recorded problem.

    Every epoch has the same problems, with lengths drawn anew.
    """
    members: dict[str, list[int]] = {}
    for problem, length in zip(recorded.problems, recorded.lengths.tolist(), strict=True):
        members.setdefault(problem, []).append(length)
    random = np.random.default_rng(seed)
    lengths_of = [list(members.values())[i] for i in random.integers(len(members), size=task.batch * task.steps)]
    works = []
    for _ in range(task.epochs):
        for step in range(task.steps):
            problems = range(step * task.batch, (step + 1) * task.batch)
            drawn = np.concatenate([random.choice(lengths_of[problem], task.group) for problem in problems])
            names = [str(problem) for problem in problems for _ in range(task.group)]
            works.append(workload(names, [np.zeros(n, np.int32) for n in drawn]))
    return works


def placements(task: DictConfig, recorded: Workload, times: Times, progress: Progress) -> list[dict[str, Any]]:
    """Rows of each placement and epoch, means over the epoch's steps.

    over_bound: rollout time divided by the bound that no placement can beat. over_mean_busy: divided by the mean time
    that engines were busy.
    """
    works = lengths_only(task, recorded, seed=0)
    rows = []
    for max_num_seqs in task.max_num_seqs:
        for name in PLACEMENTS:
            steps = placed_steps(name, works, max_num_seqs, int(task.engines), times, int(task.margin))
            for epoch in range(task.epochs):
                of_epoch = steps[epoch * task.steps : (epoch + 1) * task.steps]
                row = {
                    "slots": max_num_seqs,
                    "placement": name,
                    "epoch": epoch,
                    "rollout_s": float(np.mean([s.rollout_s for s in of_epoch])),
                    "over_bound": float(np.mean([s.rollout_s / s.bound for s in of_epoch])),
                    "over_mean_busy": float(np.mean([s.rollout_s / np.mean(s.busy_s) for s in of_epoch])),
                }
                rows.append(row)
            last = rows[-1]
            progress.note(
                f"{max_num_seqs} requests at once, {name:<28s} {last['rollout_s']:7.1f} s  over bound "
                f"{last['over_bound']:.3f}  over mean busy {last['over_mean_busy']:.3f}  (last epoch)"
            )
    return rows


def placed_steps(
    name: str, works: list[Workload], max_num_seqs: int, engines: int, times: Times, margin: int
) -> list[Step]:
    """Simulate all steps with one placement. Lengths are learned from one step to the next."""
    how, lengths_seen = PLACEMENTS[name]
    # Price of one more request in a full pass, as a share of a pass with one request.
    one = np.ones(2)
    plain_pass = times.form.predict(one, one, 0 * one)[0]
    full_pass = times.form.predict(max_num_seqs * one, max_num_seqs * one, 0 * one)[0]
    token = float(full_pass - plain_pass) / max(1, max_num_seqs - 1) / float(plain_pass)
    learned = RemainingLength(MAX_TOKENS)
    steps: list[Step] = []
    for number, work in enumerate(works):
        lengths = work.lengths if lengths_seen == "true" else predicted_lengths(learned, work.problems)
        simulated = [PlainEngine(times, max_num_seqs) for _ in range(engines)]
        if how in ("queue", "dispatcher"):
            placement = (NaiveQueue if how == "queue" else Dispatcher)(requests_of(work, lengths), margin)
            steps.append(simulate_dispatched(work, simulated, placement, number + 1).step)
        else:
            placed = place(lengths, work.problems, engines, how, max_num_seqs, token, seed=number)
            steps.append(simulate_rollout(work, simulated, placed, number + 1))
        for problem, length in zip(work.problems, work.lengths.tolist(), strict=True):
            learned.observe(problem, length)
    return steps


def requests_of(work: Workload, lengths: np.ndarray) -> list[Request]:
    """What a Dispatcher is told of a workload."""
    return [
        Request(i, problem, length)
        for i, (problem, length) in enumerate(zip(work.problems, lengths.tolist(), strict=True))
    ]


class NaiveQueue(Dispatcher):
    """Deals nothing: engines fill up one after the other from the common queue, so problems start unevenly."""

    def _deal(self) -> None:
        pass


def histories(
    task: DictConfig, budget: dict[str, Any], recorded: Workload, times: Times, progress: Progress
) -> list[dict[str, Any]]:
    """Rows of each history and epoch. Does an engine need what other engines generated?

    Each epoch places the problems on engines at random.
    """
    epochs, batch, group = int(task.epochs), int(task.history_batch), int(task.history_group)
    synthesis = Synthesis(recorded, float(task.run_length))
    works = grouped(synthesis.make(batch, group * epochs, MAX_TOKENS, seed=4), group, 0)
    rows = []
    for history in task.history:
        shared = HistoryDrafter()
        engines = [
            TextEngine(
                times,
                batch * group,
                shared if history == "shared" else HistoryDrafter(),
                make_budget(budget),
                MAX_TOKENS,
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
        of_history = [row for row in rows if row["history"] == history]
        progress.note(
            f"{history:<8s} history: tokens/pass by epoch "
            + " ".join(f"{row['tokens_per_pass']:.2f}" for row in of_history)
            + f"  rollout {sum(row['rollout_s'] for row in of_history):.1f} s in all"
        )
    return rows
