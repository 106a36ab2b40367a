"""Past trajectories of all engines, kept at the driver: what does an engine lack of the problems it is about to draft?

An engine learns its own responses while it makes them. What others made of a problem it gets before that problem is
placed on it, so a problem may move from engine to engine and an engine may be new, while no engine indexes what it does
not need.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from das.arrays import pack_strings, token_array, unpack_strings
from das.drafter.saved import SavedText


@dataclass(frozen=True)
class Trajectory(SavedText):
    """A finished response, behind the last tokens of its prompt, and the version of the weights that made it."""

    version: int


class HistoryStore:
    """The window's trajectories by problem, and which engine has which.

    window: how many history ticks (steps or epochs) are kept, the current one included, as in HistoryDrafter; 0: none.

    Raises ValueError, in one line, for a window below 0, a trajectory of a tick to come and a tick that goes back.
    """

    def __init__(self, window: int) -> None:
        if window < 0:
            raise ValueError(f"window must be at least 0, got {window}")
        self.window = window
        self.history_tick = 0
        # Trajectories in the order in which they finished, each with the engines that have it.
        self._problems: dict[str, list[tuple[Trajectory, set[int]]]] = {}

    def add(self, trajectory: Trajectory, engine: int | None) -> None:
        """Keep a trajectory. engine: the one that made it, and therefore has it; None: an engine that is gone."""
        if trajectory.history_tick > self.history_tick:
            raise ValueError(f"a trajectory of tick {trajectory.history_tick} cannot come at tick {self.history_tick}")
        if trajectory.history_tick > self.history_tick - self.window:
            known = set() if engine is None else {engine}
            self._problems.setdefault(trajectory.problem, []).append((trajectory, known))

    def missing(self, engine: int, problems: Iterable[str]) -> list[Trajectory]:
        """The trajectories of these problems that the engine lacks, oldest first for each problem.

        From now on they count as given: if they do not arrive, call `forget`.
        """
        lacking = []
        for problem in problems:
            for trajectory, known in self._problems.get(problem, ()):
                if engine not in known:
                    known.add(engine)
                    lacking.append(trajectory)
        return lacking

    def forget(self, engine: int) -> None:
        """The engine restarted or is gone: it has nothing any more."""
        for trajectories in self._problems.values():
            for _, known in trajectories:
                known.discard(engine)

    def end_step(self, history_tick: int) -> None:
        """Move to a history tick, and drop the trajectories of ticks <= history_tick - window, as the drafters do."""
        if history_tick < self.history_tick:
            raise ValueError(f"history_tick cannot go back from {self.history_tick} to {history_tick}")
        self.history_tick = history_tick
        oldest = history_tick - self.window
        for problem, trajectories in list(self._problems.items()):
            kept = [entry for entry in trajectories if entry[0].history_tick > oldest]
            if kept:
                self._problems[problem] = kept
            else:
                del self._problems[problem]

    def __len__(self) -> int:
        """Trajectories that are kept."""
        return sum(map(len, self._problems.values()))

    @property
    def bytes(self) -> int:
        """Bytes of the token ids that are kept."""
        return sum(t.tokens.nbytes for trajectories in self._problems.values() for t, _ in trajectories)

    def trajectories(self) -> list[Trajectory]:
        """All that are kept, problem by problem."""
        return [trajectory for trajectories in self._problems.values() for trajectory, _ in trajectories]

    def state(self) -> dict[str, np.ndarray]:
        """The trajectories and the history tick, as arrays that `restore` reads. Which engine has what is left out."""
        kept = self.trajectories()
        return {
            "history_tick": np.array(self.history_tick, np.int64),
            "tokens": np.concatenate([np.empty(0, np.int32), *(t.tokens for t in kept)]),
            "lengths": np.array([len(t.tokens) for t in kept], np.int64),  # context and response
            "contexts": np.array([t.context for t in kept], np.int64),
            "history_ticks": np.array([t.history_tick for t in kept], np.int64),
            "versions": np.array([t.version for t in kept], np.int64),
            "problems": pack_strings([t.problem for t in kept]),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace everything by a `state`. No engine has any of it, so their number may be another one than before.

        Raises ValueError, and changes nothing, for a state whose arrays do not fit together.
        """
        columns = [state[name].tolist() for name in ("contexts", "history_ticks", "versions", "lengths")]
        problems = unpack_strings(state["problems"])
        if any(len(column) != len(problems) for column in columns) or sum(columns[3]) != len(state["tokens"]):
            raise ValueError("the saved trajectories do not add up: the file is damaged")
        tokens = token_array(state["tokens"])
        history_tick = int(state["history_tick"])
        restored: dict[str, list[tuple[Trajectory, set[int]]]] = {}
        for problem, context, tick, version, length, end in zip(
            problems, *columns, accumulate(columns[3]), strict=True
        ):
            # A copy of its own, so that the whole array need not stay when one trajectory does.
            text = tokens[end - length : end].copy()
            if tick > history_tick - self.window:
                restored.setdefault(problem, []).append((Trajectory(problem, tick, context, text, version), set()))
        self._problems, self.history_tick = restored, history_tick
