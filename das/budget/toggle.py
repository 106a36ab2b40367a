"""Roofline toggle (EfficientRollout §3): a budget that uses another budget while passes show that drafting saves time.

speculate iff  tau T(B, S, 0) / (T(B, S, gamma) + draft passes) >= 1 + margin

T is the time of a pass of B requests with S tokens of context and gamma drafted tokens each. tau is the number of
tokens that a pass with drafts emits for a request. If a draft model is used, its draft passes take time, too.

The paper measures T beforehand, and its decisions are final. Here T is learned from the engine's passes
(das.budget.latency), so the toggle needs passes with drafts and passes without. Near a new number of requests, the
first passes carry no drafts. Drafts are then assumed to be good until they are measured. Later the toggle sometimes
makes a pass of the kind that is not in use: a *control* (without drafts) while drafting is on, a *trial* (with drafts)
while it is off. These may cost a small share of the time since the last one (das.budget.exploration). The first plain
passes of a rollout, and the first after drafts, are slower than later ones and do not count, so a control is a few
passes long.
"""

from collections import Counter, deque
from collections.abc import Sequence
from math import nan, sqrt

import numpy as np

from das.budget.exploration import Allowance
from das.budget.latency import LatencyModel
from das.budget.policies import BudgetPolicy, Fixed, LiveRequest, TargetPass
from das.drafter import Drafts

DEFAULT_TOKENS = 8  # draft tokens per request and pass of the default `over`
ENOUGH = 7  # plain passes needed near a number of requests (with as many binary digits) before the rule applies
FORGET = 0.995  # each newer pass with drafts reduces a pass's weight in tau by this factor
UNSETTLED = 4  # number of first plain passes, of a rollout or after drafts, that are slower than later ones
HOPE = 0.5  # tau is raised by so many standard errors, because otherwise bad luck would end drafting


class RooflineToggle(BudgetPolicy):
    """A budget that switches another budget on and off.

    over        the budget used while drafting is on; None: `Fixed(DEFAULT_TOKENS)`
    margin      drafting starts at a predicted speedup of 1 + margin (epsilon in the paper)
    ratio       see LatencyModel

    Once on, drafting stays on until the rollout ends, or until passes show that it loses time. Raises ValueError for a
    negative margin and for a ratio that is not positive.
    """

    def __init__(
        self,
        over: BudgetPolicy | None = None,
        margin: float = 0.05,
        ratio: float | None = None,
    ):
        if margin < 0:
            raise ValueError(f"budget=roofline_toggle needs margin >= 0, got {margin}")
        self.over = Fixed(DEFAULT_TOKENS) if over is None else over
        self.max_draft_tokens = self.over.max_draft_tokens
        self.reads_probabilities = self.over.reads_probabilities
        self.margin = margin
        self.on = False
        self.prices = LatencyModel(ratio)
        self.draft_prices = LatencyModel()  # of passes of a draft model
        self._plain_passes = 0  # plain passes since the rollout began, or since the last pass with drafts
        self._excess_s = 0.0  # extra seconds of the first UNSETTLED plain passes, compared with later ones
        self._unsettled_s = 0.0  # `_excess_s` of the last complete series of plain passes: the cost of a pause
        self._now = 0.0  # seconds of all passes
        self._controls, self._trials = Allowance(), Allowance()
        # Passes without drafts, by the binary digits of their live requests. The first slow passes count, too: if the
        # number of requests alternates between two sizes, one of the sizes may have no others.
        self._plain: Counter[int] = Counter()
        self._has_price = False  # whether a pass without drafts was timed
        # Sums over passes with drafts: passes, requests, drafted tokens, accepted tokens, passes of a draft model.
        self._drafted = np.zeros(5)
        self._speedups: list[float] = []  # predicted speedups that `trace` has not handed out yet

    def begin_step(self, requests: int) -> None:
        self.on = False
        self._begin_plain_passes()
        self._speedups = []
        self.over.begin_step(requests)

    def begin(self, request: LiveRequest) -> None:
        self.over.begin(request)

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        limits = self.over.limits(live)
        return limits if self._drafts(live, sum(limits) / len(live)) else [0] * len(live)

    def _drafts(self, live: Sequence[LiveRequest], gamma: float) -> bool:
        """Returns whether the coming pass shall have drafts. gamma: mean draft limit of a request, in tokens."""
        if not self._has_price or self._plain[len(live).bit_length()] < ENOUGH or not gamma:
            self._speedups.append(nan)
            return False
        tau, plain, with_drafts = self._predicted(live, gamma)
        speedup = tau * plain / with_drafts
        self._speedups.append(speedup)
        self.on = speedup >= (1 if self.on else 1 + self.margin)
        if self.on:
            loss = (UNSETTLED + 1) * (plain - with_drafts / tau) + self._unsettled_s
            return loss >= self._controls.seconds(self._now)
        loss = with_drafts - tau * plain / (1 + self.margin)
        return loss < self._trials.seconds(self._now)

    def _predicted(self, live: Sequence[LiveRequest], gamma: float) -> tuple[float, float, float]:
        """Returns predictions of tau (tokens that a pass with drafts emits for a request), of the seconds of a pass
        without drafts, and of the seconds of a pass with drafts. gamma: mean draft limit of a request, in tokens.

        Before anything was drafted, all drafts are expected to be accepted.
        """
        tau, per_request, draft_passes = 1 + gamma, gamma, 0.0
        passes, rows, drafted, accepted, made = self._drafted.tolist()
        if passes:
            per_request, draft_passes = drafted / rows, made / passes
            # An upper bound of the standard error: no numbers from 0 to `drafted` with this mean have a larger one.
            tau = 1 + accepted / rows + HOPE * sqrt(accepted * (drafted - accepted) / rows) / rows
        plain = self.prices.predict(len(live))
        with_drafts = self.prices.predict(len(live), max(1, round(per_request * len(live))))
        draft_s = self.draft_prices.predict(len(live)) if draft_passes else 0.0
        return tau, plain, with_drafts + draft_passes * draft_s

    def _begin_plain_passes(self) -> None:
        self._plain_passes, self._excess_s = 0, 0.0

    def _settled(self, done: TargetPass) -> bool:
        """Returns whether this plain pass (a pass without drafts) shows the usual time of plain passes.

        On the small policy, the first plain passes after drafts take 1.7, 1.35, 1.3 and 1.2 times as long as later
        ones, because the draft model's weights and other drafting data must first leave the processor's caches.
        """
        self._plain_passes += 1
        if self._plain_passes > UNSETTLED:
            return True
        if self._has_price:
            self._excess_s += max(0.0, done.seconds - self.prices.predict(done.live))
        if self._plain_passes == UNSETTLED:
            self._unsettled_s = self._excess_s
        return False

    def trace(self) -> dict[str, list[float]]:
        """Returns `pass_speedup`, the predicted speedups; nan if too few plain passes were seen for a prediction."""
        speedups, self._speedups = self._speedups, []
        return {"pass_speedup": speedups}

    def floors(self, live: Sequence[LiveRequest]) -> Sequence[float] | None:
        return self.over.floors(live)

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        return self.over.trim(live, drafts)

    def observe_pass(self, done: TargetPass) -> None:
        self._now += done.seconds + sum(seconds for _, seconds in done.draft_passes)
        settled = bool(done.num_drafted) or self._settled(done)
        if settled:
            self.prices.observe(done)
        for rows, seconds in done.draft_passes:
            self.draft_prices.observe(TargetPass(rows, 0, 0, 0, seconds))
        if done.num_drafted:
            self._begin_plain_passes()
            self._trials.spent(self._now, new=self.on)
            new = (1, done.live, done.num_drafted, done.num_accepted, len(done.draft_passes))
            self._drafted = FORGET * self._drafted + new
        else:
            self._plain[done.live.bit_length()] += 1
            if settled:
                self._controls.spent(self._now, new=True)
                self._has_price = True
        self.over.observe_pass(done)

    def predict(self, live: int, num_drafted: int, context: int) -> float:
        return self.prices.predict(live, num_drafted)

    def end(self, request: LiveRequest) -> None:
        self.over.end(request)

    def end_step(self) -> None:
        self.over.end_step()


class Ladder(BudgetPolicy):
    """Gives all requests one draft length, which may change after a step: the share of accepted drafted tokens decides.

    rungs     the draft lengths, rising; the ladder starts with the first one
    up        move one rung up if the share was at least this in each of the last `patience` steps
    down      move one rung down if the share was at most this in each of the last `patience` steps
    patience  number of steps

    Raises ValueError for rungs that do not rise and for thresholds out of range.
    """

    def __init__(self, rungs: Sequence[int] = (5, 7, 9, 11), up: float = 0.94, down: float = 0.85, patience: int = 2):
        if not rungs or list(rungs) != sorted(set(rungs)) or rungs[0] < 1:
            raise ValueError(f"budget.rungs must be draft lengths >= 1 that rise, got {list(rungs)}")
        if not 0 <= down < up <= 1 or patience < 1:
            raise ValueError(
                f"budget=ladder needs 0 <= down < up <= 1 and patience >= 1, got down={down}, up={up}, "
                f"patience={patience}"
            )
        self.rungs = list(rungs)
        self.max_draft_tokens = self.rungs[-1]
        self.rung = 0
        self._up, self._down = up, down
        self._shares: deque[float] = deque(maxlen=patience)  # accepted / drafted in the last steps with this length
        self._num_drafted = self._num_accepted = 0

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [self.rungs[self.rung]] * len(live)

    def observe_pass(self, done: TargetPass) -> None:
        self._num_drafted += done.num_drafted
        self._num_accepted += done.num_accepted

    def end_step(self) -> None:
        if self._num_drafted:
            self._shares.append(self._num_accepted / self._num_drafted)
        self._num_drafted = self._num_accepted = 0
        if len(self._shares) < (self._shares.maxlen or 0):
            return
        if min(self._shares) >= self._up and self.rung + 1 < len(self.rungs):
            self.rung += 1
        elif max(self._shares) <= self._down and self.rung > 0:
            self.rung -= 1
        else:
            return
        self._shares.clear()  # shares of another rung say nothing about this one
