"""Ranks that train together give each other the responses that they finished.

Each rank has an engine of its own, and TRL deals problems to ranks anew in each epoch, so a problem comes back to the
engine that knows it once in so many ranks. Once a step, when new weights go to the engines, the ranks exchange what
they finished since the last time. An engine gets a problem's responses of other ranks before it rolls the problem out
again, as engines of a cluster do (das/cluster/history_store.py), and indexes no others.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from das import ranks
from das.arrays import packed, unpacked
from das.cluster.history_store import HistoryStore, finished_text
from das.drafter import native
from das.drafter.saved import SavedHistory, SavedText, read_history
from das.engine.rollouts.rollout import PUT_ASIDE, Rollout, RolloutRequest

OWN = 0  # the number of this rank's engine in its store
OF_OTHERS, TO_SHARE = "history_of_others.npz", "history_to_share.npz"  # files of a checkpoint


@dataclass(frozen=True)
class Exchange:
    """What an exchange cost this rank."""

    seconds: float = 0.0
    bytes: int = 0  # that it sent


class SharedHistory:
    """What one rank finished and did not give away yet, and what others gave it.

    window: how many history ticks are kept (das.drafter.window_of). add_history: that of the rank's engine. gives:
    whether this rank gives its responses away: of the ranks that share an engine, one does. All ranks of the training
    must have such an object.
    """

    def __init__(self, window: int, add_history: Callable[[int, list[SavedText]], None], gives: bool = True):
        self._store = HistoryStore(window)
        self._add_history = add_history
        self._gives = gives
        self._finished: list[SavedText] = []
        self.last = Exchange()

    def note(self, request: RolloutRequest, rollout: Rollout) -> None:
        """Note the responses that this rank's engine finished in a rollout or a turn of the training."""
        tick = self._store.history_tick
        for prompt, response, reason, cost, problem in zip(
            request.prompts,
            rollout.responses,
            rollout.finish_reasons,
            rollout.requests,
            request.problems,
            strict=True,
        ):
            if self._gives and reason != PUT_ASIDE:
                ids = prompt["prompt_token_ids"]
                self._finished.append(finished_text(problem, tick, ids, response, cost.distributions))

    def end_rollout(self, history_tick: int) -> None:
        """Move the window, as the engine's drafter does at a rollout's end."""
        self._store.end_step(history_tick)

    def exchange(self) -> None:
        """Give the other ranks what this rank finished, and take what they did. All ranks must call it together."""
        start = time.perf_counter()
        arrays = SavedHistory(native.prior_weights(), self._store.history_tick, self._finished).arrays()
        self._finished = []
        own = packed(arrays)
        for rank, given in enumerate(ranks.gather(own)):
            if rank != ranks.rank():
                for text in SavedHistory.of_arrays(unpacked(given)).texts:
                    self._store.add(text, [])
        self.last = Exchange(time.perf_counter() - start, len(own))

    def prepare(self, problems: Sequence[str]) -> None:
        """Let the engine learn what other ranks answered to these problems, before it is asked for them."""
        self._add_history(self._store.history_tick, self._store.missing(OWN, dict.fromkeys(problems)))

    def save(self, folder: Path) -> None:
        """Write what a resumed run needs into the folder of a checkpoint."""
        kept = self._store.saved()
        lacking = [text for text, known in zip(kept.texts, self._store.known(), strict=True) if OWN not in known]
        replace(kept, texts=lacking).write(folder / OF_OTHERS)
        replace(kept, texts=self._finished).write(folder / TO_SHARE)

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        of_others = read_history(folder / OF_OTHERS)
        self._store.restore(of_others, [[]] * len(of_others.texts))
        self._finished = read_history(folder / TO_SHARE).texts
