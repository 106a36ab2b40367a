"""The base class of drafters. docs/drafters_and_budgets.md explains how to write one.

Draft and Drafts are what they return.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from das.drafter.distributions import Distributions
    from das.drafter.saved import SavedText
from dataclasses import dataclass


@dataclass(slots=True)
class Draft:
    """Drafted tokens; probs[j] estimates P(token j is accepted | all tokens before it were accepted)."""

    tokens: list[int]
    probs: list[float]


@dataclass(frozen=True)
class Drafts:
    """Drafts of a batch, one row per request. Row r holds counts[r] tokens; later entries are undefined."""

    tokens: np.ndarray  # int32 [R, K]
    probs: np.ndarray  # float64 [R, K], conditional as in Draft; rows are contiguous
    counts: np.ndarray  # int64 [R]

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, row: int) -> Draft:
        count = int(self.counts[row])
        return Draft(self.tokens[row, :count].tolist(), self.probs[row, :count].tolist())


# Where nobody announces rollouts, a history tick is this many response tokens, so that memory is bounded: the default
# window of 16 ticks then holds 8 million tokens, whose index takes about 90 bytes each.
TOKENS_PER_TICK = 2**19
# A request counts as so many further tokens: its prompt and bookkeeping take about 5 KB, however short its response.
TOKENS_PER_REQUEST = 64


class Drafter(ABC):
    """Makes drafts for the requests of one engine. The policy verifies each token, so a bad draft costs time but
    changes no result.

    For each request the engine calls `begin` once, `observe` with the tokens that each pass emitted, and `end`. Before
    each pass it calls `propose` for the requests that may draft. If the engine preempts a request, the drafter does not
    notice.

    window: for how many history ticks (steps or epochs) the drafter uses finished responses; 0: it uses none. vocab:
    the policy's token ids are 0 to vocab - 1; the engine sets this attribute.
    history_tick: the current tick, the last of those that `window` counts.
    remembers: whether it wants the distributions from which tokens were sampled, and the seeds of their noise.
    told: the last tick that a caller gave, a step or an epoch.
    learns: whether it may learn from the tokens that requests emit. The engine forbids it during an evaluation, whose
    requests it then ends with keep=False: a training must not notice them.
    """

    remembers: bool = False
    learns: bool = True
    window: int = 0
    vocab: int = 2**31
    history_tick: int = 0
    told: int = 0
    _tokens: int = 0  # of unannounced rollouts that do not make a tick yet

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Raise ValueError or TypeError with a one-line message if the class does not take these options. It builds
        nothing."""
        try:
            inspect.signature(cls).bind(**options)
        except TypeError as error:
            raise TypeError(f"drafter {cls.__name__}: {error}") from None

    # ---- methods that a drafter must implement ----

    @abstractmethod
    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        """Note that a request of this problem begins. prompt: its token ids. seed: the seed of the noise with which its
        tokens are sampled; None: unknown, or no noise."""

    @abstractmethod
    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Note that a request emitted these tokens."""

    @abstractmethod
    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        """Propose at most limits[i] tokens for each request, each with the probability that the policy accepts it.

        floors: drafts should end before the probability that all of a draft is accepted falls below floors[i].
        """

    @abstractmethod
    def end(self, request: str, keep: bool = True) -> None:
        """Note that a request is over. keep: whether later drafts may use its response."""

    # ---- methods that a drafter inherits ----

    @property
    def history_tokens(self) -> int:
        """The number of tokens of finished responses from which this drafter copies."""
        return 0

    def observe_batch(
        self,
        requests: Sequence[str],
        tokens: Sequence[Sequence[int] | np.ndarray],
        remembered: np.ndarray | None = None,
    ) -> None:
        """Note the tokens that many requests emitted: call `observe` for each.

        remembered: the distribution from which each token was sampled, uint32 [tokens, PAIRS]
        (das.drafter.distributions). Its rows follow the tokens of the first request, then those of the second, and so
        on. None: the distributions are unknown.
        """
        for request, own in zip(requests, tokens, strict=True):
            self.observe(request, own)

    def remembered(self, request: str) -> Distributions | None:
        """Returns the distributions of a live request's tokens, for records and for the histories of other engines.
        None: the drafter does not hand them out."""
        return None

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """Calls `propose`, and returns arrays. Raises ValueError with a one-line message if no engine can verify a
        draft."""
        drafts = self.propose(requests, limits, floors)
        counts = np.array([len(draft.tokens) for draft in drafts], np.int64)
        if len(drafts) != len(requests) or any(counts > np.asarray(limits)):
            raise ValueError(f"{self._name}.propose drafted {counts.tolist()} tokens, asked for at most {list(limits)}")
        tokens, probs = np.zeros((2, len(drafts), max(counts, default=0)))
        for row, draft in enumerate(drafts):
            if len(draft.probs) != len(draft.tokens):
                raise ValueError(f"{self._name}.propose: {len(draft.probs)} probs for {len(draft.tokens)} tokens")
            tokens[row, : counts[row]], probs[row, : counts[row]] = draft.tokens, draft.probs
        if tokens.size and not (tokens.min() >= 0 and tokens.max() < self.vocab):
            raise ValueError(f"{self._name}.propose: a token id is outside of 0..{self.vocab - 1}")
        if probs.size and not (probs.min() >= 0 and probs.max() <= 1):
            raise ValueError(f"{self._name}.propose: a probability is outside of 0..1")
        return Drafts(tokens.astype(np.int32), probs, counts)

    def move_window(self, history_tick: int) -> None:
        """Note that a rollout is over. history_tick: the current tick from now on."""
        self.history_tick = history_tick

    def end_rollout(self, tick: int) -> None:
        """Move the clock, and the window with it, at the end of an announced rollout. tick: the caller's."""
        # A smaller tick comes from another trainer, whose clock began at 0. The history's clock never goes back.
        passed = tick - (self.told if tick >= self.told else 0)
        self.told = tick
        self.move_window(self.history_tick + passed)

    def end_unannounced(self, requests: int, tokens: int) -> None:
        """Move the clock where nobody announces rollouts. requests, tokens: how many requests ran since, and the tokens
        that they emitted."""
        passed, self._tokens = divmod(self._tokens + tokens + TOKENS_PER_REQUEST * requests, TOKENS_PER_TICK)
        self.move_window(self.history_tick + passed)

    @property
    def oldest_tick(self) -> int:
        """The oldest tick in the window."""
        return self.history_tick - self.window + 1

    def add_history(self, texts: Sequence[SavedText]) -> None:  # noqa: B027  # a drafter need not remember
        """Add responses of other engines, so that drafts may come from them, too."""

    def save(self, path: Path) -> None:  # noqa: B027  # a drafter need not remember
        """Write everything that the drafter has learned, for a checkpoint. No request is live."""

    def load(self, path: Path) -> None:  # noqa: B027  # a drafter need not remember
        """Continue from the state that `save` wrote."""

    @property
    def _name(self) -> str:
        return type(self).__name__
