"""The trainer's store of past trajectories (responses) of all engines. Each engine gets the trajectories that it lacks.

An engine learns its own responses while it makes them. Before an engine gets a request of a problem, it gets the
trajectories of this problem that other engines made. So a problem may move from engine to engine, an engine may be new,
and no engine indexes what it does not need.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from das.drafter.checks import MAX_TICK
from das.drafter.distributions import Distributions
from das.drafter.options import PROMPT_CONTEXT
from das.drafter.saved import SavedHistory, SavedText
from das.engine.rollouts.report import Finished


def finished_text(finished: Finished, history_tick: int, prompt: Sequence[int]) -> SavedText:
    """Returns a finished response in the form in which engines give it to each other. prompt: its token ids."""
    assert finished.problem is not None
    context, known, length = prompt[-PROMPT_CONTEXT:], finished.distributions, len(finished.tokens)
    tokens = np.concatenate([np.asarray(context, np.int32), np.asarray(finished.tokens, np.int32)])
    remembered = None if known is None else Distributions.from_text(known, length)
    return SavedText(finished.problem, history_tick, len(context), tokens, remembered=remembered)


class HistoryStore:
    """Keeps the trajectories in the window of the engines' drafters, by problem, and notes which engine has which one.

    Raises ValueError with a one-line message if a trajectory has a future tick, or a tick goes back.
    """

    def __init__(self) -> None:
        self.history_tick, self._oldest = 0, -MAX_TICK
        # Trajectories in the order in which they finished, each with the engines that have it.
        self._problems: dict[str, list[tuple[SavedText, set[int]]]] = {}

    def add(self, trajectory: SavedText, engines: Iterable[int]) -> None:
        """Keep a trajectory. engines: those that have it."""
        if trajectory.history_tick > self.history_tick:
            raise ValueError(f"a trajectory of tick {trajectory.history_tick} cannot come at tick {self.history_tick}")
        if trajectory.history_tick >= self._oldest:
            self._problems.setdefault(trajectory.problem, []).append((trajectory, set(engines)))

    def missing(self, engine: int, problems: Iterable[str]) -> list[SavedText]:
        """Returns the trajectories of these problems that the engine lacks, oldest first for each problem.

        From now on these trajectories count as given to the engine: if they do not arrive, call `forget`.
        """
        lacking = []
        for problem in problems:
            for trajectory, known in self._problems.get(problem, ()):
                if engine not in known:
                    known.add(engine)
                    lacking.append(trajectory)
        return lacking

    def forget(self, engine: int) -> None:
        """Note that an engine has no trajectories any more, because it is gone."""
        for trajectories in self._problems.values():
            for _, known in trajectories:
                known.discard(engine)

    def end_rollout(self, history_tick: int, oldest: int) -> None:
        """Move to a history tick, and drop trajectories before the oldest one that the drafters keep."""
        if history_tick < self.history_tick:
            raise ValueError(f"history_tick cannot go back from {self.history_tick} to {history_tick}")
        self.history_tick, self._oldest = history_tick, oldest
        for problem, trajectories in list(self._problems.items()):
            kept = [entry for entry in trajectories if entry[0].history_tick >= oldest]
            if kept:
                self._problems[problem] = kept
            else:
                del self._problems[problem]

    @property
    def bytes(self) -> int:
        """The number of bytes of all kept token ids and distributions."""
        return sum(text.nbytes for texts in self._problems.values() for text, _ in texts)

    def saved(self) -> SavedHistory:
        """Returns all trajectories, in the form of a drafter's saved history."""
        return SavedHistory(self.history_tick, [text for text, _ in self._in_order()])

    def known(self) -> list[list[int]]:
        """Returns which engines have each trajectory of `saved`, in the same order."""
        return [sorted(known) for _, known in self._in_order()]

    def _in_order(self) -> list[tuple[SavedText, set[int]]]:
        entries = [entry for entries in self._problems.values() for entry in entries]
        return sorted(entries, key=lambda entry: entry[0].history_tick)

    def restore(self, saved: SavedHistory, known: Sequence[Iterable[int]]) -> None:
        """Replace all trajectories by saved ones. known: the engines that have each of them."""
        self._problems, self.history_tick, self._oldest = {}, saved.history_tick, -MAX_TICK
        for text, engines in zip(saved.texts, known, strict=True):
            # Each text is copied, so that the file's whole array need not stay while one text does.
            self.add(replace(text, tokens=text.tokens.copy()), engines)
