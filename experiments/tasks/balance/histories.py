"""Whose history? With texts, the real drafter and the real budget."""

from typing import Any

import numpy as np
from omegaconf import DictConfig

from das.budget import make_budget
from das.cluster.dispatcher import Dispatcher, Request
from das.cluster.history_store import HistoryStore
from das.drafter import HistoryDrafter
from das.replay.dispatched import simulate_dispatched
from das.replay.synthesis import Synthesis
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from das.replay.workload import Workload
from experiments.recorded.rollouts import grouped
from experiments.run.progress import Progress
from experiments.tasks.balance.placements import MAX_TOKENS

# private: an engine knows what it generated. store: it also gets what it lacks of a problem when that problem is placed
# on it (das/cluster/history_store.py). shared: all engines draft from one history that has every token at once, as one
# large engine would; no cluster can do that.
HISTORIES = ("private", "store", "shared")


def histories(
    task: DictConfig, budget: dict[str, Any], recorded: Workload, times: Times, progress: Progress
) -> list[dict[str, Any]]:
    """Rows of each history and epoch. Does an engine need what other engines generated?

    Each epoch deals the problems in a random order, so that they come to other engines than before.
    """
    epochs, batch, group = int(task.epochs), int(task.history_batch), int(task.history_group)
    synthesis = Synthesis(recorded, float(task.run_length))
    works = grouped(synthesis.make(batch, group * epochs, MAX_TOKENS, seed=4), group, 0)
    rows = []
    for history in task.history:
        one, store = HistoryDrafter(), HistoryStore(HistoryDrafter().window)
        engines = [
            TextEngine(
                times,
                batch * group,
                one if history == "shared" else HistoryDrafter(),
                make_budget(budget),
                MAX_TOKENS,
                name=f"{e}-",
            )
            for e in range(task.history_engines)
        ]
        for epoch, work in enumerate(works):
            order = np.random.default_rng(epoch).permutation(batch)
            rank = dict(zip(dict.fromkeys(work.problems), order.tolist(), strict=True))
            requests = [Request(i, problem, batch + rank[problem]) for i, problem in enumerate(work.problems)]
            done = simulate_dispatched(
                work, engines, Dispatcher(requests), epoch + 1, store=store if history == "store" else None
            )
            step = done.step
            rows.append(
                {
                    "history": history,
                    "epoch": epoch,
                    "tokens_per_pass": step.tokens_per_pass,
                    "rollout_s": step.rollout_s,
                    "tokens": step.tokens,
                    "sent_bytes": done.sent_bytes,
                    "kept_bytes": store.bytes,
                }
            )
        of_history = [row for row in rows if row["history"] == history]
        progress.note(
            f"{history:<8s} history: tokens/pass by epoch "
            + " ".join(f"{row['tokens_per_pass']:.3f}" for row in of_history)
            + f"  rollout {sum(row['rollout_s'] for row in of_history):.1f} s in all"
            + f"  sent {sum(row['sent_bytes'] for row in of_history) / 1e6:.1f} MB"
        )
    return rows
