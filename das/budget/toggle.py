"""Roofline toggle (EfficientRollout §3): another budget, used only once a roofline predicts that drafting pays.

speculate iff  tau T(B, S, 0) / T(B, S, gamma) >= 1 + margin

T is the time of a pass of B requests with S tokens of context and gamma drafted tokens each. It comes from the roofline
that is fitted to the engine's own passes, whose times include drafting. A drafter that is a model takes gamma passes of
its own; their time is added to T(B, S, gamma), and comes from the engine's own draft passes. tau is the number of
tokens that a pass with drafts emitted for a request in the previous rollout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from das.budget.draft_price import DraftPassPrice
from das.budget.fixed import Fixed
from das.budget.latency import OnlineFit
from das.budget.latency_forms import Roofline, fit_roofline
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass
from das.drafter import Drafts

DEFAULT_TOKENS = 8  # draft tokens per request and pass, of the default `over`
FORGET = 8  # rollouts without drafts after which tau is forgotten, because only drafting can show that tau has improved
FADE = 0.9  # of the price of a draft pass, after a rollout without any, for the same reason


@dataclass(frozen=True)
class _Counts:
    """What the drafted passes of a rollout did."""

    rows: int = 0  # requests in these passes, summed over passes
    num_drafted: int = 0
    num_accepted: int = 0


class RooflineToggle(BudgetPolicy):
    """A switch over another budget.

    over        the budget in force while drafting is on; None: `Fixed(DEFAULT_TOKENS)`
    margin      epsilon of the rule: drafting starts at a predicted speedup of 1 + margin
    ramp        the rule is ignored until more than this many requests have been live at once in the rollout (the
                published code uses 32); 0: no such guard
    one_way     once on, drafting stays on until the rollout ends; but what was decided before the price of a draft pass
                was known is decided again in the next pass
    ratio       tokens whose computation hides behind reading the weights; assumed until a fit of passes exists

    Raises ValueError for a negative margin or ramp and for a ratio that is not positive.
    """

    def __init__(
        self,
        over: BudgetPolicy | None = None,
        margin: float = 0.05,
        ramp: int = 0,
        one_way: bool = True,
        ratio: float = 64.0,
    ):
        if margin < 0 or ramp < 0 or ratio <= 0:
            raise ValueError(
                f"budget=roofline_toggle needs margin, ramp >= 0 and ratio > 0, got {margin}, {ramp}, {ratio}"
            )
        self.over = Fixed(DEFAULT_TOKENS) if over is None else over
        self.max_draft_tokens = self.over.max_draft_tokens
        self.margin, self.ramp, self.one_way = margin, ramp, one_way
        self.on = False
        self._was_priced = False  # whether the engine's own passes had been fitted when it was decided
        self._most_live = 0
        self._assumed = Roofline(memory=1.0, kv=0.0, compute=1 / ratio, request=0.0)
        self._online = OnlineFit(fit_roofline)
        self.draft_price = DraftPassPrice()
        self._previous = _Counts()  # of the rollout that tau comes from
        self._current = _Counts()  # of this rollout
        self._undrafted = 0  # rollouts in a row without drafts
        self._speedups: list[float] = []  # predicted in this rollout, and not yet handed out

    def begin_step(self, requests: int) -> None:
        self.on, self._was_priced, self._most_live = False, False, 0
        self._speedups = []
        self.over.begin_step(requests)

    def begin(self, request: LiveRequest) -> None:
        self.over.begin(request)

    def waiting(self, requests: int) -> None:
        self.over.waiting(requests)

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        limits = self.over.limits(live)
        self._most_live = max(self._most_live, len(live))
        if not (self.on and self.one_way and (self._was_priced or not self.draft_price.seconds(1))):
            self._was_priced = self._online.fitted is not None and not self.draft_price.faded
            guarded = self.ramp and self._most_live <= self.ramp
            self._speedups.append(self.speedup(live, sum(limits) / len(live)))
            self.on = not guarded and self._speedups[-1] >= 1 + self.margin
        else:
            self._speedups.append(float("nan"))
        return limits if self.on else [0] * len(live)

    def speedup(self, live: Sequence[LiveRequest], gamma: float) -> float:
        """Predicted time without drafts / with drafts, for the same number of tokens.

        Before anything was drafted, a pass is assumed to emit gamma tokens (the published tau_0), or 1 + gamma / 2 if
        that is more.
        """
        seen = self._previous
        if seen.rows:
            per_request, tau = seen.num_drafted / seen.rows, 1 + seen.num_accepted / seen.rows
        else:
            per_request, tau = gamma, max(gamma, 1 + gamma / 2)
        fitted = self._online.fitted
        form = fitted if isinstance(fitted, Roofline) and fitted.compute > 0 else self._assumed
        count, context = float(len(live)), float(sum(request.prompt + request.generated for request in live))
        plain, with_drafts = form.predict(
            np.full(2, count), np.array([count, count * (1 + per_request)]), np.full(2, context)
        ).tolist()
        # The assumed form is not in seconds, so a draft pass counts as a share of a measured plain pass.
        plain_s = self.predict(len(live), 0, int(context))
        share = self.draft_price.seconds(len(live)) / plain_s if plain_s > 0 else 0.0
        return float(tau * plain / (with_drafts + per_request * share * plain))

    def trace(self) -> dict[str, list[float]]:
        """`pass_speedup`: the predicted speedup; nan where it was not asked for, because drafting stays on."""
        speedups, self._speedups = self._speedups, []
        return {"pass_speedup": speedups}

    def floors(self, live: Sequence[LiveRequest]) -> Sequence[float] | None:
        return self.over.floors(live)

    def branch_floor(self) -> float:
        return self.over.branch_floor()

    def worth(self) -> float:
        return self.over.worth()

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        return self.over.trim(live, drafts)

    def observe_pass(self, done: TargetPass) -> None:
        self._online.observe(done.live, done.tokens, done.context, done.seconds)
        for rows, seconds in done.draft_passes:
            self.draft_price.observe(rows, seconds)
        if done.num_drafted:
            seen = self._current
            self._current = _Counts(
                seen.rows + done.live, seen.num_drafted + done.num_drafted, seen.num_accepted + done.num_accepted
            )
        self.over.observe_pass(done)

    def predict(self, live: int, num_drafted: int, context: int, branches: int = 0) -> float:
        fitted = self._online.fitted
        if fitted is None:
            return float("nan")
        return float(fitted.predict(np.array([live]), np.array([live + num_drafted]), np.array([context]))[0])

    def end(self, request: LiveRequest) -> None:
        self.over.end(request)

    def end_step(self) -> None:
        self._undrafted = 0 if self._current.rows else self._undrafted + 1
        if self._undrafted:
            self.draft_price.fade(FADE)
        if self._current.rows or self._undrafted == FORGET:
            self._previous = self._current
        self._current = _Counts()
        self.over.end_step()
