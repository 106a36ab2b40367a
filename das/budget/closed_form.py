"""The paper's optimal budget (§2.4-2.6, corrected in das.budget.optimal), solved repeatedly during the rollout.

The inputs of the solution are learned: expected remaining lengths from past rollouts, acceptance curves from finished
requests, costs from the engine's own passes. The solution gives each request d* = p* / N* draft tokens per pass. d* is
not an integer: the fraction is carried over to the next pass.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from das.budget.acceptance import AcceptanceModel, Curve
from das.budget.latency import LatencyModel
from das.budget.optimal import optimal_budget
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass
from das.budget.remaining import MAX_RESPONSE, RemainingLength

RESOLVE = 128  # passes from one solution to the next; solving takes a millisecond


class ClosedForm(BudgetPolicy):
    """Gives each request the optimal budget of the paper's model.

    tokens    the most draft tokens a request gets in a pass
    ratio     see LatencyModel
    k, alpha  the acceptance curve assumed before any request has finished
    latency   see LatencyModel, `measured`

    Raises ValueError for values out of range.
    """

    def __init__(
        self, tokens: int = 32, ratio: float = 64.0, k: float = 0.8, alpha: float = 0.8, latency: str | None = None
    ):
        if tokens < 1:
            raise ValueError(f"budget.tokens must be at least 1, got {tokens}; for no drafts use budget=none")
        if not (0 < k <= 1 and alpha > 0):
            raise ValueError(f"budget=closed_form needs 0 < k <= 1 and alpha > 0, got k={k}, alpha={alpha}")
        self.max_draft_tokens = tokens
        self.latency = LatencyModel(ratio, latency)
        self.lengths = RemainingLength(MAX_RESPONSE)
        self.acceptance = AcceptanceModel(Curve(k, alpha))
        self._live: list[LiveRequest] = []
        self._per_pass = self._saved = np.empty(0)  # per request: d*, and the fraction carried over
        self._age = RESOLVE  # passes since the last solution

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
        """Compute the optimal budgets of the live requests. They hold for RESOLVE passes unless a new request
        arrives."""
        row_of = {request.name: i for i, request in enumerate(self._live)}
        old_rows = np.array([row_of.get(request.name, -1) for request in live])
        self._saved = np.where(old_rows >= 0, np.append(self._saved, 0.0)[old_rows], 0.5)
        self._live = live
        if self._age < RESOLVE and (old_rows >= 0).all():
            self._per_pass = self._per_pass[old_rows]
            return
        rows_of: defaultdict[str, list[int]] = defaultdict(list)
        for row, request in enumerate(live):
            rows_of[request.problem].append(row)
        generated = np.array([request.generated for request in live], np.float64)
        room = np.array([request.max_tokens for request in live], np.float64) - generated
        length, k, alpha = np.empty((3, len(live)))
        for problem, rows in rows_of.items():
            curve = self.acceptance.curve(problem)
            length[rows] = self.lengths.mean_remaining(problem, generated[rows])
            k[rows], alpha[rows] = curve.k, curve.alpha
        left = np.minimum(length, np.maximum(room, 1))
        drafted, passes = optimal_budget(left, k, alpha, *self.latency.line(len(live)))
        self._per_pass = drafted / passes
        self._age = 0

    def observe_pass(self, done: TargetPass) -> None:
        self.latency.observe(done)
        self._age += 1

    def predict(self, live: int, num_drafted: int, context: int, branches: int = 0) -> float:
        return self.latency.predict(live, num_drafted, branches)

    def end(self, request: LiveRequest) -> None:
        self.lengths.observe(request.problem, request.generated)
        self.acceptance.observe(request.problem, request.generated, request.num_drafted, request.num_accepted)
