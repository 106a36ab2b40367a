"""The paper's optimal budget (§2.4-2.6, corrected: das.budget.optimal), solved again while the rollout runs.

Lengths are the mean tokens to come by the hazards of past rollouts, acceptance curves those of finished requests, costs
those of the engine's own passes. The solution gives each request d* = p* / N* draft tokens a pass, a fraction: the part
below one token is kept for the next pass.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from das.budget.acceptance import AcceptanceModel, Curve
from das.budget.latency import LatencyModel
from das.budget.optimal import optimal_budget
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass
from das.budget.remaining import RemainingLength

LONGEST_RESPONSE = 2**18  # tokens: lengths are learned up to here
RESOLVE = 128  # passes from one solution to the next; one takes a millisecond


class ClosedForm(BudgetPolicy):
    """tokens: the most a request is given a pass. ratio, latency: LatencyModel's `ratio` and `measured`. k, alpha: the
    acceptance curve assumed until requests have finished."""

    def __init__(
        self, tokens: int = 32, ratio: float = 64.0, k: float = 0.8, alpha: float = 0.8, latency: str | None = None
    ):
        if tokens < 1:
            raise ValueError(f"budget.tokens must be at least 1, got {tokens}; for no drafts use budget=none")
        if not (0 < k <= 1 and alpha > 0):
            raise ValueError(f"budget=closed_form needs 0 < k <= 1 and alpha > 0, got k={k}, alpha={alpha}")
        self.max_draft_tokens = tokens
        self.latency = LatencyModel(ratio, latency)
        self.lengths = RemainingLength(LONGEST_RESPONSE)
        self.acceptance = AcceptanceModel(Curve(k, alpha))
        self._live: list[LiveRequest] = []
        self._per_pass = self._saved = np.empty(0)  # of these: d*, and the fraction not yet given
        self._age = RESOLVE

    def begin_step(self, requests: int) -> None:
        self._age = RESOLVE

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        if self._age >= RESOLVE or self._live != live:
            self._solve(list(live))
        self._saved = np.minimum(self._saved + self._per_pass, self.max_draft_tokens)
        limits = self._saved.astype(int)
        self._saved -= limits
        return limits.tolist()

    def _solve(self, live: list[LiveRequest]) -> None:
        """The solution for the requests that live now; while none is new, those that go on keep theirs for RESOLVE
        passes."""
        at = {request.name: i for i, request in enumerate(self._live)}
        kept = np.array([at.get(request.name, -1) for request in live])
        self._saved = np.where(kept >= 0, np.append(self._saved, 0.0)[kept], 0.5)
        self._live = live
        if self._age < RESOLVE and (kept >= 0).all():
            self._per_pass = self._per_pass[kept]
            return
        rows_of: defaultdict[str, list[int]] = defaultdict(list)
        for row, request in enumerate(live):
            rows_of[request.problem].append(row)
        generated = np.array([request.generated for request in live], np.float64)
        room = np.array([request.max_tokens for request in live], np.float64) - generated
        length, k, alpha = np.empty((3, len(live)))
        for problem, rows in rows_of.items():
            curve = self.acceptance.curve(problem)
            length[rows], k[rows], alpha[rows] = self.lengths.means(problem, generated[rows]), curve.k, curve.alpha
        form = self.latency.form
        best = optimal_budget(np.minimum(length, np.maximum(room, 1)), k, alpha, form.base, form.token)
        self._per_pass = best.per_pass_R
        self._age = 0

    def observe_pass(self, done: TargetPass) -> None:
        self.latency.observe(done)
        self._age += 1

    def predict(self, live: int, drafted: int, context: int) -> float:
        return self.latency.predict(live, drafted, context)

    def end(self, request: LiveRequest) -> None:
        self.lengths.observe(request.problem, request.generated)
        self.acceptance.observe(request.problem, request.generated, request.num_drafted, request.num_accepted)
