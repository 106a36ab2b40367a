"""What drafters that are models have in common: beside the model, a history drafts; passes have a price."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from das.budget.draft_price import DraftPassPrice, DraftWork
from das.drafter import Drafts, HistoryDrafter, TreeDrafts
from das.drafter.saved import SavedText

# Tokens that a pass drafted, int64 [A], and P(each is accepted | those before it are), float64 [A]; None: the model
# computed values that are not finite, and drafts no more.
Drawn = tuple[np.ndarray, np.ndarray] | None


class DraftingModel(Protocol):
    """A model that drafts for the requests of one engine."""

    def clock(self) -> float:
        """Seconds since any time. What lies between two readings is what the passes between them took."""

    def prepare(self, requests: Sequence[str]) -> float | None:
        """Get ready to draft for these requests. Returns the seconds that quantizing took; None if it may not draft."""

    def observe(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """What the requests emitted in the pass that verified the last drafts; nothing if their rollout is over."""


class ModelDrafter(ABC):
    """A drafter (das.draft_round.Drafter) for the requests of one engine, without the rule by which drafts are made.

    worth     seconds that one more emitted token saves; nan while nobody knows
    history   drafts, too; None: nothing does
    """

    def __init__(
        self,
        model: DraftingModel,
        worth: Callable[[], float],
        history: HistoryDrafter | None = None,
    ):
        self.model: DraftingModel = model
        self.worth = worth
        self.history = history
        self.window = 0 if history is None else history.window
        self.price = DraftPassPrice()
        self._passes_made: list[tuple[int, float]] = []  # rows and seconds of each pass of the last drafts
        self._requantize_s = 0.0  # before the last drafts
        self._usual = 1.0  # probability with which a drafted token is usually accepted
        self._tick = 0  # without a history

    @abstractmethod
    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """Drafts of at most limits[i] tokens. floors: a draft ends where the probability that all of it is accepted
        falls below floors[i]."""

    @property
    def history_tick(self) -> int:
        """The history's tick."""
        return self._tick if self.history is None else self.history.history_tick

    @property
    def history_tokens(self) -> int:
        """Response tokens in the history."""
        return 0 if self.history is None else self.history.history_tokens

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray) -> None:
        """A request joins the batch."""
        if self.history is not None:
            self.history.begin(request, problem, prompt)

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Tokens that a request brings along."""
        if self.history is not None:
            self.history.observe(request, tokens)

    def observe_batch(self, requests: Sequence[str], tokens: Sequence[Sequence[int] | np.ndarray]) -> None:
        """What the requests emitted in the pass that verified the last drafts."""
        self.model.observe(requests, [list(new) for new in tokens])
        if self.history is not None:
            self.history.observe_batch(requests, tokens)

    def propose_tree(
        self,
        requests: Sequence[str],
        nodes: Sequence[int],
        floors: Sequence[float] | None = None,
        branch_floor: float = 0.0,
    ) -> TreeDrafts:
        """Drafts of models do not branch, and das.engine.build refuses engines that ask for it."""
        raise NotImplementedError("drafts of models do not branch")

    def end(self, request: str, keep: bool = True) -> None:
        """A request finished."""
        if self.history is not None:
            self.history.end(request, keep)

    def end_step(self, history_tick: int) -> None:
        """Move the history's window."""
        self._tick = history_tick
        self.model.observe((), ())  # what was drafted last belongs to requests that are over
        if self.history is not None:
            self.history.end_step(history_tick)

    def add_history(self, responses: Sequence[SavedText]) -> None:
        """Responses that other engines finished."""
        if self.history is not None:
            self.history.add_history(responses)

    def save(self, path: Path) -> None:
        """Write the history."""
        if self.history is not None:
            self.history.save(path)

    def load(self, path: Path) -> None:
        """Read the history."""
        if self.history is not None:
            self.history.load(path)

    def state(self) -> dict[str, np.ndarray]:
        """What was learned of acceptance, for a checkpoint. Prices are learned again within a few passes."""
        return {"usual": np.array(self._usual)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned."""
        self._usual = float(state["usual"])

    def handed_out(self) -> DraftWork:
        """What the last round of drafts took. It is handed out once, because a later round may make no drafts."""
        drafting = DraftWork(self._passes_made, self._requantize_s)
        self._passes_made, self._requantize_s = [], 0.0
        return drafting

    def _begin_round(self) -> None:
        """Nothing was drafted yet for the coming target pass."""
        self._passes_made, self._requantize_s = [], 0.0

    def _prepare(self, requests: Sequence[str]) -> bool:
        """Let the model get ready. Returns whether it may draft in this round."""
        took = self.model.prepare(requests)
        self._requantize_s = took or 0.0
        return took is not None

    def _pays(self, tokens: float, seconds: float) -> bool:
        """Whether passes that take so long are worth it if they let the policy emit so many tokens more."""
        worth = self.worth()
        return math.isnan(worth) or tokens * worth >= seconds

    def _stop(self) -> None:
        """No further pass pays. If this round has none at all, their price kept the model from drafting."""
        if not self._passes_made:
            self.price.decline()

    def _note_pass(self, rows: int, seconds: float, likely: np.ndarray) -> None:
        """A pass drafted tokens that are accepted with these probabilities."""
        self._usual += 0.02 * (float(likely.mean()) - self._usual)
        self._passes_made.append((rows, seconds))
        self.price.observe(rows, seconds)
