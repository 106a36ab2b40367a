"""An engine with a drafter that is a model: W4 self-draft, EAGLE, MTP, a small model. Acceptance by profile, no text.

A cycle drafts gamma tokens for every live request, one draft pass after the other, verifies them in one target pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from das.replay.engine import Engine
from das.replay.times import Times
from das.replay.workload import Workload

Cost = Callable[[float, float], float]  # (live requests, tokens of context of all) -> seconds


@dataclass(frozen=True)
class Profile:
    """rates[j]: P(draft token j is accepted | those before it were); their number is the draft length gamma."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rates or not all(0 <= rate <= 1 for rate in self.rates):
            raise ValueError(f"acceptance rates must be one or more numbers in 0..1, got {self.rates}")

    @property
    def tau(self) -> float:
        """Tokens a cycle: accepted + 1."""
        return 1.0 + float(np.cumprod(self.rates).sum())

    @property
    def gamma(self) -> int:
        return len(self.rates)

    def accepted(self, uniform: np.ndarray, depth: np.ndarray) -> np.ndarray:
        """Accepted tokens of drafts, from a uniform number in [0, 1) for each; depth: tokens of response so far."""
        reach = np.cumprod(self.rates)  # P(at least j + 1 accepted), falling
        return np.searchsorted(-reach, -uniform, side="left")


@dataclass(frozen=True)
class ByDepth:
    """Acceptance that changes as a response grows: profiles[i] holds from begins[i] tokens on; equal draft lengths."""

    begins: tuple[int, ...]
    profiles: tuple[Profile, ...]

    def __post_init__(self) -> None:
        rising = self.begins[:1] == (0,) and list(self.begins) == sorted(set(self.begins))
        if len(self.begins) != len(self.profiles) or not rising:
            raise ValueError(f"a profile for each depth is needed, depths from 0 on and rising, got {self.begins}")
        if len({profile.gamma for profile in self.profiles}) > 1:
            raise ValueError("profiles by depth must have drafts of one length")

    @property
    def gamma(self) -> int:
        return self.profiles[0].gamma

    @property
    def tau(self) -> float:
        """Of young responses, which most are."""
        return self.profiles[0].tau

    def accepted(self, uniform: np.ndarray, depth: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self.begins, depth, side="right") - 1
        every = np.stack([profile.accepted(uniform, depth) for profile in self.profiles])
        return every[at, np.arange(len(uniform))]


def constant_rate(tau: float, gamma: int) -> Profile:
    """The profile of one rate at all positions that gives tau = (1 - a^(gamma+1)) / (1 - a) tokens a cycle."""
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
class ModelDrafter:
    """A drafting model. draft, verify: seconds of a draft pass of all requests, and of verifying their drafts.

    pays_from: the predicted speedup from which speculation is switched on, for the rest of the rollout
    (EfficientRollout: 1 + eps = 1.05); 0: always on. host: seconds a cycle beside, of which that prediction knows
    nothing.
    """

    profile: Profile | ByDepth
    draft: Cost
    verify: Cost
    host: float = 0.0
    pays_from: float = 0.0

    def cycle(self, live: float, context: float) -> float:
        """Seconds of gamma draft passes and one verification, without the host's."""
        return self.profile.gamma * self.draft(live, context) + self.verify(live, context)


class ProfileEngine(Engine):
    """seed: of the acceptance draws."""

    def __init__(self, times: Times, slots: int, model: ModelDrafter, seed: int) -> None:
        super().__init__(times, slots)
        self.model = model
        self._random = np.random.default_rng(seed)

    def begin_step(self, work: Workload, requests: Sequence[int]) -> None:
        super().begin_step(work, requests)
        self.on = not self.model.pays_from

    def advance(self) -> None:
        came = len(self.admit())
        live, model = self.live, self.model
        if not self.on:
            gain = model.profile.tau * self.times.target(live, 0, self._context) / model.cycle(live, self._context)
            self.on = gain >= model.pays_from
        if not self.on:
            self._run_plain(came)
            return
        gamma = model.profile.gamma
        while True:  # until a request ends
            seconds = model.cycle(live, self._context) + model.host + self.times.host
            self.now += seconds + came * self.work.prompt * self.times.prefill
            came = 0
            left = self._end - self._at
            depth = self._at - self.work.starts[self._ids]
            right = np.minimum(model.profile.accepted(self._random.random(live), depth), left)
            emitted = np.minimum(right + 1, left)
            total = int(emitted.sum())
            self.timeline.add(np.array([self.now]), live, live * (gamma + 1), total)
            self.passes += live
            self.num_drafted += live * gamma
            self.num_accepted += int(right.sum())
            self._at = self._at + emitted
            self._taken = self._taken + 1
            self._context += total
            done = self._at == self._end
            if done.any():
                self._leave(done)
                return
