"""Simulated engines with a fixed number of sequences and a clock, and a rollout on several of them.

ProfileEngine's drafter is a model: a self-draft with 4-bit weights, EAGLE, MTP, or a small model. The simulation has no
text. An acceptance profile decides at random how many tokens of a draft are accepted. A cycle drafts gamma tokens for
every live request, in gamma draft passes, and verifies them in one target pass.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.simulate.times import PassTimes, PassWork
from experiments.simulate.workload import Workload


class Timeline:
    """The passes of a rollout, with the end time and the counts of each pass."""

    def __init__(self) -> None:
        self._passes: list[np.ndarray] = [np.empty((4, 0))]

    def add(self, times: np.ndarray, live: int, tokens: int, emitted: int) -> None:
        """Add passes that differ only in their end times. times: in seconds since the rollout began [passes].

        live: number of requests. tokens: requests + drafted tokens. emitted: number of emitted tokens.
        """
        self._passes.append(np.stack(np.broadcast_arrays(times, live, tokens, emitted)))

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays time_s, live, tokens and emitted, with one value for each pass."""
        return dict(zip(("time_s", "live", "tokens", "emitted"), np.concatenate(self._passes, axis=1), strict=True))


class Engine:
    """Simulates the requests and the clock of one engine. Subclasses decide how drafts are made.

    max_num_seqs: the most requests that decode at once.
    """

    def __init__(self, times: PassTimes, max_num_seqs: int) -> None:
        self.times = times
        self.max_num_seqs = max_num_seqs

    def begin_step(self, work: Workload, requests: Sequence[int]) -> None:
        """Begin a rollout. These requests of `work` wait, in this order, until the engine can decode them."""
        self.work = work
        self.now = 0.0
        self.waiting = deque(requests)
        self.timeline = Timeline()
        self.passes = 0  # number of target passes, summed over requests
        self.num_drafted = self.num_accepted = 0  # draft tokens
        self.finished: dict[int, float] = {}  # when the last token of each finished request came
        # These have one entry for each live request.
        self._ids: list[int] = []
        self._at = np.empty(0, np.int64)  # position of its next token in work.tokens
        self._end = np.empty(0, np.int64)  # position after its last token
        self._context = 0  # tokens of prompt and response that all live requests have
        self._prompted: set[str] = set()  # problems whose prompt was computed in this rollout

    @property
    def live(self) -> int:
        """The number of requests that decode now."""
        return len(self._ids)

    def admit(self) -> list[int]:
        """Let waiting requests join the live ones while there is room. Returns the new ones.

        Their prompts are computed in the coming pass.
        """
        count = min(self.max_num_seqs - self.live, len(self.waiting))
        admitted = [self.waiting.popleft() for _ in range(count)]
        if admitted:
            starts = self.work.starts
            self._ids += admitted
            self._at = np.concatenate([self._at, starts[admitted]])
            self._end = np.concatenate([self._end, starts[np.asarray(admitted) + 1]])
            self._context += count * self.work.prompt
        return admitted

    def advance(self) -> None:
        """Admit waiting requests, then run one or more passes, at most until a request finishes."""
        raise NotImplementedError

    def close_step(self, next_history_tick: int) -> None:
        """Note that the rollout is over. next_history_tick: that of the drafter's history after the step."""

    def _pass(self, admitted: Sequence[int], **counts: int) -> PassWork:
        """Returns what a pass does. admitted: the requests that are new in it. counts: see PassWork."""
        new = {self.work.problems[i] for i in admitted} - self._prompted
        self._prompted |= new
        prompt = self.work.prompt
        return PassWork(joined=len(admitted), prompt=len(admitted) * prompt, new_prompt=len(new) * prompt, **counts)

    def _leave(self, done: np.ndarray) -> None:
        """Remove the live requests that finished in the pass. done: bool [live requests]."""
        for row in np.flatnonzero(done).tolist():
            self.finished[self._ids[row]] = self.now
            self._context -= int(self._end[row] - self.work.starts[self._ids[row]]) + self.work.prompt
        stay = ~done
        self._ids = [i for i, stays in zip(self._ids, stay.tolist(), strict=True) if stays]
        self._at, self._end = self._at[stay], self._end[stay]

    def _run_plain(self, admitted: Sequence[int]) -> None:
        """Run passes without drafts until the first live request finishes. All these passes are computed at once.

        admitted: requests whose prompts the first of these passes computes.
        """
        live, passes = self.live, int((self._end - self._at).min())
        seconds = self.times.plain(live, self._context, passes)
        if admitted:
            work = self._pass(admitted, live=live, drafted=0, context=self._context, emitted=live)
            seconds[0] = self.times.seconds(work)
        ends = self.now + np.cumsum(seconds)
        self.timeline.add(ends, live, live, live)
        self.now += float(seconds.sum())
        self.passes += live * passes
        self._at = self._at + passes
        self._context += live * passes
        self._leave(self._at == self._end)


class PlainEngine(Engine):
    """A simulated engine that makes no drafts."""

    def advance(self) -> None:
        self._run_plain(self.admit())


# ---- rollouts ----


@dataclass(frozen=True)
class Step:
    """The costs of one rollout. Times are in seconds."""

    rollout_s: float
    tokens: int
    passes: int  # number of target passes, summed over requests
    num_drafted: int
    num_accepted: int
    timelines: tuple[dict[str, np.ndarray], ...]  # for each engine: see Timeline.arrays

    @property
    def tokens_per_pass(self) -> float:
        """The mean number of tokens that a target pass emitted for a request."""
        return self.tokens / self.passes


def simulate_rollout(
    work: Workload, engines: Sequence[Engine], placed: Sequence[Sequence[int]], next_history_tick: int
) -> Step:
    """Simulate the rollout of one step on engines of which none knows what another does.

    placed: the requests of each engine. next_history_tick: the drafters' history tick after the step.
    """
    for engine, requests in zip(engines, placed, strict=True):
        engine.begin_step(work, requests)
        while engine.live or engine.waiting:
            engine.advance()
        engine.close_step(next_history_tick)
    return Step(
        rollout_s=max(engine.now for engine in engines),
        tokens=len(work.tokens),
        passes=sum(engine.passes for engine in engines),
        num_drafted=sum(engine.num_drafted for engine in engines),
        num_accepted=sum(engine.num_accepted for engine in engines),
        timelines=tuple(engine.timeline.arrays() for engine in engines),
    )


def roll_out(engine: Engine, works: Sequence[Workload], steps_per_epoch: int = 1) -> list[Step]:
    """Simulate rollouts on one engine, step by step. The history's clock (its tick) moves once per epoch."""
    return [
        simulate_rollout(work, [engine], [range(len(work))], number // steps_per_epoch)
        for number, work in enumerate(works, 1)
    ]


# ---- a drafter that is a model ----

Cost = Callable[[float, float], float]  # (live requests, tokens of context of all requests together) -> seconds


@dataclass(frozen=True)
class Profile:
    """The acceptance rates of the tokens of a draft. A draft has as many tokens (gamma) as there are rates."""

    rates: tuple[float, ...]  # rates[j] = P(draft token j is accepted | the tokens before it were)

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
    """Return the profile with a rate a at all positions that gives tau = (1 - a^(gamma+1)) / (1 - a) tokens per cycle,
    from 1 to gamma + 1."""
    roots = np.roots([1.0] * gamma + [1.0 - tau])
    return Profile((min(1.0, float(max(roots[np.isreal(roots)].real))),) * gamma)


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
