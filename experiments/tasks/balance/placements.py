"""Which placement, and by which lengths? Lengths alone, at full size, without speculation."""

from typing import Any

import numpy as np
from omegaconf import DictConfig

from das.budget.remaining import RemainingLength
from das.cluster.dispatcher import Dispatcher, Request
from das.replay.cluster import Step, place, predicted_lengths, simulate_rollout
from das.replay.dispatched import simulate_dispatched
from das.replay.engine import PlainEngine
from das.replay.times import Times
from das.replay.workload import Workload, workload
from experiments.run.progress import Progress

MAX_TOKENS = 16384  # of a response (paper)
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


def lengths_only(recorded: Workload, batch: int, group: int, steps: int, epochs: int, seed: int) -> list[Workload]:
    """Steps of all epochs, without text. Each problem's lengths are drawn from those of one recorded problem.

    A step has `group` responses to each of `batch` problems. Epochs have the same problems, with lengths drawn anew.
    """
    members: dict[str, list[int]] = {}
    for problem, length in zip(recorded.problems, recorded.lengths.tolist(), strict=True):
        members.setdefault(problem, []).append(length)
    random = np.random.default_rng(seed)
    lengths_of = [list(members.values())[i] for i in random.integers(len(members), size=batch * steps)]
    works = []
    for _ in range(epochs):
        for step in range(steps):
            problems = range(step * batch, (step + 1) * batch)
            drawn = np.concatenate([random.choice(lengths_of[problem], group) for problem in problems])
            names = [str(problem) for problem in problems for _ in range(group)]
            works.append(workload(names, [np.zeros(n, np.int32) for n in drawn]))
    return works


def placements(task: DictConfig, recorded: Workload, times: Times, progress: Progress) -> list[dict[str, Any]]:
    """Rows of each placement and epoch, means over the epoch's steps.

    over_bound: rollout time divided by the bound that no placement can beat. over_mean_busy: divided by the mean time
    that engines were busy.
    """
    works = lengths_only(recorded, int(task.batch), int(task.group), int(task.steps), int(task.epochs), seed=0)
    rows = []
    for max_num_seqs in task.max_num_seqs:
        for name in PLACEMENTS:
            steps = placed_steps(name, works, max_num_seqs, int(task.engines), times, int(task.margin))
            for epoch in range(task.epochs):
                of_epoch = steps[epoch * task.steps : (epoch + 1) * task.steps]
                row = {
                    "engines": int(task.engines),
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
                f"{task.engines} x {max_num_seqs} slots, {name:<24s} {last['rollout_s']:7.1f} s  over bound "
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
