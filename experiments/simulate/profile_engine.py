"""A simulated engine whose drafter is a model: a self-draft with 4-bit weights, EAGLE, MTP, or a small model.

The simulation has no text. An acceptance profile decides at random how many tokens of a draft are accepted. A cycle
drafts gamma tokens for every live request, in gamma draft passes, and verifies them in one target pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.simulate.engine import Engine
from experiments.simulate.times import PassTimes, PassWork
from experiments.simulate.workload import Workload

Cost = Callable[[float, float], float]  # (live requests, tokens of context of all requests together) -> seconds


@dataclass(frozen=True)
class Profile:
    """The acceptance rates of the tokens of a draft. A draft has as many tokens (gamma) as there are rates."""

    rates: tuple[float, ...]  # rates[j] = P(draft token j is accepted | the tokens before it were)

    def __post_init__(self) -> None:
        if not self.rates or not all(0 <= rate <= 1 for rate in self.rates):
            raise ValueError(f"acceptance rates must be one or more numbers in 0..1, got {self.rates}")

    @property
    def tau(self) -> float:
        """The mean number of tokens that a cycle emits for a request: accepted tokens + 1."""
        return 1.0 + float(np.cumprod(self.rates).sum())

    @property
    def gamma(self) -> int:
        """The number of tokens of a draft."""
        return len(self.rates)

    def num_accepted(self, uniform: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Return the number of accepted tokens of each draft.

        uniform: a random number in [0, 1) for each draft. depth: tokens of each response so far; not used here.
        """
        reach = np.cumprod(self.rates)  # P(at least j + 1 tokens are accepted), which falls with j
        return np.searchsorted(-reach, -uniform, side="left")


@dataclass(frozen=True)
class ByDepth:
    """Acceptance rates that change as a response grows. All profiles must be for drafts of the same length."""

    begins: tuple[int, ...]
    profiles: tuple[Profile, ...]  # profiles[i] holds from begins[i] tokens of a response on

    def __post_init__(self) -> None:
        rising = self.begins[:1] == (0,) and list(self.begins) == sorted(set(self.begins))
        if len(self.begins) != len(self.profiles) or not rising:
            raise ValueError(f"a profile for each depth is needed, depths from 0 on and rising, got {self.begins}")
        if len({profile.gamma for profile in self.profiles}) > 1:
            raise ValueError("profiles by depth must have drafts of one length")

    @property
    def gamma(self) -> int:
        """The number of tokens of a draft."""
        return self.profiles[0].gamma

    @property
    def tau(self) -> float:
        """The mean number of tokens that a cycle emits for a short response (by the first profile). Most live responses
        are short."""
        return self.profiles[0].tau

    def num_accepted(self, uniform: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Return the number of accepted tokens of each draft, by the profile for its response's length (depth)."""
        chosen = np.searchsorted(self.begins, depth, side="right") - 1
        by_profile = np.stack([profile.num_accepted(uniform, depth) for profile in self.profiles])
        return by_profile[chosen, np.arange(len(uniform))]


def constant_rate(tau: float, gamma: int) -> Profile:
    """Return the profile with a rate a at all positions that gives tau = (1 - a^(gamma+1)) / (1 - a) tokens per cycle.

    Raises ValueError if no rate gives this tau.
    """
    if gamma < 1:
        raise ValueError(f"a draft needs at least 1 token, got {gamma}")
    if not 1 <= tau <= gamma + 1:
        raise ValueError(f"tau={tau} is impossible with drafts of {gamma} tokens: it lies in 1..{gamma + 1}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if Profile((middle,) * gamma).tau < tau:
            low = middle
        else:
            high = middle
    return Profile((high,) * gamma)


@dataclass(frozen=True)
class ProfiledDrafter:
    """A drafting model, described by its acceptance and its costs."""

    profile: Profile | ByDepth
    draft: Cost  # seconds of one draft pass over all live requests
    verify: Cost  # seconds of the target pass that verifies their drafts
    host: float = 0.0  # seconds of host time per cycle; the predicted speedup leaves them out
    # Speculation is switched on for the rest of the rollout once the predicted speedup reaches this; 0: always on.
    # EfficientRollout has 1 + eps = 1.05.
    pays_from: float = 0.0

    def cycle(self, live: float, context: float) -> float:
        """Return the seconds of gamma draft passes and one verification, without host time."""
        return self.profile.gamma * self.draft(live, context) + self.verify(live, context)


class ProfileEngine(Engine):
    """A simulated engine with a ProfiledDrafter. seed: seed of the random numbers that decide how many tokens are
    accepted."""

    def __init__(self, times: PassTimes, max_num_seqs: int, model: ProfiledDrafter, seed: int) -> None:
        super().__init__(times, max_num_seqs)
        self.model = model
        self._random = np.random.default_rng(seed)

    def begin_step(self, work: Workload, requests: Sequence[int]) -> None:
        super().begin_step(work, requests)
        self.on = not self.model.pays_from

    def advance(self) -> None:
        admitted = self.admit()
        live, model, prompts_s = self.live, self.model, 0.0
        plain_s = self.times.seconds(PassWork(live, 0, self._context, live))
        if not self.on:
            self.on = model.profile.tau * plain_s / model.cycle(live, self._context) >= model.pays_from
        if not self.on:
            self._run_plain(admitted)
            return
        if admitted:
            plain = self._pass(admitted, live=live, drafted=0, context=self._context, emitted=live)
            prompts_s = self.times.seconds(plain) - plain_s
        gamma = model.profile.gamma
        while True:  # until a request finishes
            self.now += model.cycle(live, self._context) + model.host + prompts_s
            prompts_s = 0.0
            remaining = self._end - self._at
            depth = self._at - self.work.starts[self._ids]
            num_emitted = np.minimum(model.profile.num_accepted(self._random.random(live), depth) + 1, remaining)
            total = int(num_emitted.sum())
            self.timeline.add(np.array([self.now]), live, live * (gamma + 1), total)
            self.passes += live
            self.num_drafted += live * gamma
            self.num_accepted += total - live
            self._at = self._at + num_emitted
            self._context += total
            done = self._at == self._end
            if done.any():
                self._leave(done)
                return
