"""The budgets of the DAS paper: drafts by length class, and the closed form of its model (das.md §2.4-2.6).

They plug into das as a user's own budget does: by module and class (docs/drafters_and_budgets.md).

Closed form: the optimal number of tokens to draft for each request over a rollout, in the paper's model.

A request of length l with p drafted tokens has k l (1 - exp(-alpha p / l)) accepted tokens, so it needs
l (1 - k + k exp(-alpha p / l)) target passes. The rollout takes N passes, as many as its slowest request:

    J = c_base N + c_tok sum_i p_i + C                                                                       (Eqs 5, 6)
    p_i(N) = -(l_i / alpha_i) ln(1 - (1 - N / l_i) / k_i)  where N < l_i, else 0        N > max_i l_i (1 - k_i)
    dJ/dN = c_base - c_tok sum_{l_i > N} 1 / (alpha_i (k_i - 1 + N / l_i))

J is convex in N and dJ/dN rises, so bisection finds its zero. The paper's Eq 7 prints ln(1 - k_i (1 - N / l_i)). With
that budget a request still needs l (1 - k^2 (1 - N / l)) passes, more than N unless k = 1.

How many of a request's drafted tokens will be accepted is learned from finished requests (AcceptanceModel).

A(p) = k l (1 - exp(-alpha p / l))      l: length of the response, p: tokens drafted over its life         (paper Eq 3)

k is the largest share of a response that drafts can supply. alpha is the efficiency of drafting: the first drafted
tokens are accepted at a rate of k alpha. The paper gives no estimator, so this module fits the accepted share A / l by
least squares and weights each response by its length. For a given alpha, k has a closed form; alpha is searched on a
grid. The grid needs only two sums per point, so a problem takes 1 kB however long the run is.
"""

import bisect
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from weakref import WeakKeyDictionary

import numpy as np

from das.budget.latency import Array, LatencyModel
from das.budget.lengths import MAX_RESPONSE, ByProblem, RemainingLength
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass, drafted_tokens

ALPHAS = np.geomspace(0.01, 20.0, 96)  # 8 % apart
MAX_K = np.minimum(1.0, 1.0 / ALPHAS)  # k alpha <= 1, because a drafted token is accepted at most once


@dataclass(frozen=True)
class Curve:
    """An acceptance curve A(p) = k l (1 - exp(-alpha p / l)), with k in (0, 1], alpha > 0 and k alpha <= 1."""

    k: float
    alpha: float


@dataclass
class _Sums:
    """The sums from which k is fitted in y = k g, for every alpha of the grid: y = A / l, g = 1 - exp(-alpha p / l). A
    response of length l with A accepted and p drafted tokens has the weight l."""

    responses: float = 0.0
    yg: Array = field(default_factory=lambda: np.zeros(len(ALPHAS)))
    gg: Array = field(default_factory=lambda: np.zeros(len(ALPHAS)))

    def add(self, length: float, num_drafted: float, num_accepted: float, forget: float) -> None:
        g = -np.expm1(-ALPHAS * num_drafted / length)
        self.responses = self.responses * forget + 1
        self.yg = self.yg * forget + num_accepted * g
        self.gg = self.gg * forget + length * g * g


class AcceptanceModel:
    """One acceptance curve per problem. A problem with few responses follows the pool of all problems.

    assumed      the curve until anything has been drafted
    pooled       weight of the pool in a problem's curve, as a number of responses
    own_memory   responses remembered per problem (exponential forgetting, because policies drift)
    pool_memory  the same for the pool
    """

    def __init__(self, assumed: Curve, pooled: float = 2.0, own_memory: float = 32.0, pool_memory: float = 1000.0):
        self.assumed = assumed
        self._pooled = pooled
        self._own_forget, self._pool_forget = 1 - 1 / own_memory, 1 - 1 / pool_memory
        self._pool = _Sums()
        self._problems: ByProblem[_Sums] = ByProblem(_Sums)

    def observe(self, problem: str, length: int, num_drafted: int, num_accepted: int) -> None:
        """Learn from a finished response. A response without drafts is ignored."""
        if num_drafted and length:
            self._problems[problem].add(length, num_drafted, num_accepted, self._own_forget)
            self._pool.add(length, num_drafted, num_accepted, self._pool_forget)

    def curve(self, problem: str) -> Curve:
        """Returns the best estimate of the problem's curve."""
        pool = self._pool
        if not pool.responses:
            return self.assumed
        share = self._pooled / pool.responses if problem in self._problems else 1.0
        sums = self._problems.get(problem, _Sums())
        yg, gg = sums.yg + share * pool.yg, sums.gg + share * pool.gg
        k = np.clip(yg / gg, 1e-3, MAX_K)
        best = int(np.argmin(k * (k * gg - 2 * yg)))  # squared error, without the part that is the same for all curves
        return Curve(float(k[best]), float(ALPHAS[best]))


def budget_for(passes: float, length_R: Array, k_R: Array, alpha_R: Array) -> Array:
    """Returns p_i(N): the fewest drafted tokens with which each request ends within `passes`; inf if none suffice."""
    saved = np.clip(1 - passes / length_R, 0, None) / k_R  # saved passes, as a share of the most that drafts can save
    with np.errstate(divide="ignore"):
        return np.where(saved < 1, -length_R / alpha_R * np.log1p(-np.minimum(saved, 1)), np.inf)


def optimal_budget(length_R: Array, k_R: Array, alpha_R: Array, c_base: float, c_tok: float) -> tuple[Array, float]:
    """Returns the budget that minimises J: p*, each request's tokens to draft over the rollout, and its passes N*.

    If drafts never pay, all p* are 0.

    length_R: remaining tokens, > 0. k_R: in (0, 1]. alpha_R: > 0. c_base, c_tok: seconds of a pass and of a token, > 0.
    """

    def slope(passes: float) -> float:
        drafted = length_R > passes
        room = k_R[drafted] - 1 + passes / length_R[drafted]
        return c_base - c_tok * float(np.sum(1 / (alpha_R[drafted] * np.maximum(room, 1e-300))))

    low, high = float((length_R * (1 - k_R)).max()), float(length_R.max())
    for _ in range(100):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if slope(middle) < 0:
            low = middle
        else:
            high = middle
    # If J falls all the way up to the longest request, `high` never moves and no request is drafted for.
    return budget_for(high, length_R, k_R, alpha_R), high


RESOLVE = 128  # passes from one solution to the next; solving takes a millisecond


class ClosedForm(BudgetPolicy):
    """Gives each request the optimal budget of the paper's model.

    tokens    the most draft tokens a request gets in a pass
    ratio     see LatencyModel
    k, alpha  the acceptance curve assumed before any request has finished

    Raises ValueError for values out of range.
    """

    def __init__(self, tokens: int = 32, ratio: float | None = None, k: float = 0.8, alpha: float = 0.8):
        if not (0 < k <= 1 and alpha > 0):
            raise ValueError(f"budget=closed_form needs 0 < k <= 1 and alpha > 0, got k={k}, alpha={alpha}")
        self.max_draft_tokens = drafted_tokens(tokens)
        self.latency = LatencyModel(ratio)
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

    def predict(self, live: int, num_drafted: int, context: int) -> float:
        return self.latency.predict(live, num_drafted)

    def end(self, request: LiveRequest) -> None:
        self.lengths.observe(request.problem, request.generated)
        self.acceptance.observe(request.problem, request.generated, request.num_drafted, request.num_accepted)


PROBLEM_MEMORY = 64  # responses of each problem that are remembered for Init
MEMORY = 4096  # responses that are remembered for P


class LengthClass(IntEnum):
    """The class of a response's final length, in ascending order."""

    SHORT = 0
    MEDIUM = 1
    LONG = 2


class Classes(BudgetPolicy):
    """Gives each request the draft limit of its length class (Short, Medium or Long).

    short, medium, long     draft tokens per pass for a request of the class
    medium_from, long_from  response length in tokens from which a request is Medium or Long

    Raises ValueError for negative limits, for limits that are all 0, and for thresholds that do not rise.
    """

    def __init__(self, short: int = 0, medium: int = 8, long: int = 24, medium_from: int = 64, long_from: int = 160):
        if min(short, medium, long) < 0:
            raise ValueError(f"budgets must not be negative, got short={short}, medium={medium}, long={long}")
        if max(short, medium, long) == 0:
            raise ValueError("all three class budgets are 0: nothing would be drafted; for no drafts use budget=none")
        if not 0 < medium_from < long_from:
            raise ValueError(
                f"length thresholds must satisfy 0 < medium < long, got medium={medium_from}, long={long_from}"
            )
        self.by_class = {LengthClass.SHORT: short, LengthClass.MEDIUM: medium, LengthClass.LONG: long}
        self.max_draft_tokens = max(self.by_class.values())
        self._medium_from, self._long_from = medium_from, long_from
        self._problems: ByProblem[deque[int]] = ByProblem(lambda: deque(maxlen=PROBLEM_MEMORY))  # response lengths
        self._finished: deque[tuple[LengthClass, int]] = deque(maxlen=MEMORY)  # (class at start, final length)
        self._lengths: dict[LengthClass, list[int]] = {}  # the same lengths, sorted, up to the end of the last rollout
        self._current: dict[tuple[int, LengthClass], LengthClass] = {}  # results of `_likeliest` in this rollout
        self.initial: WeakKeyDictionary[LiveRequest, LengthClass] = WeakKeyDictionary()  # class at start

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        limits = []
        for request in live:
            if request not in self.initial:
                self.initial[request] = self._initial(request.problem)
            state = request.generated, self.initial[request]
            current = self._current.get(state)
            if current is None:
                current = self._current[state] = self._likeliest(*state)
            limits.append(self.by_class[current])
        return limits

    def end(self, request: LiveRequest) -> None:
        if (initial := self.initial.get(request)) is not None:
            self._problems[request.problem].append(request.generated)
            self._finished.append((initial, request.generated))

    def end_step(self) -> None:
        self._current.clear()
        self._lengths = {c: sorted(n for start, n in self._finished if start == c) for c in LengthClass}

    def _class_of(self, length: int) -> LengthClass:
        if length >= self._long_from:
            return LengthClass.LONG
        return LengthClass.MEDIUM if length >= self._medium_from else LengthClass.SHORT

    def _initial(self, problem: str) -> LengthClass:
        """Returns the most frequent class of the problem's past responses (on ties, the longer); Medium without any."""
        past = self._problems.get(problem)
        if not past:
            return LengthClass.MEDIUM
        counts = Counter(map(self._class_of, past))
        return max(counts, key=lambda c: (counts[c], c))

    def _likeliest(self, generated: int, initial: LengthClass) -> LengthClass:
        """Returns the likeliest class of a response that has more than `generated` tokens and began in the class
        `initial`. On ties the longer class counts; a class that the response has already outgrown is never returned."""
        reached = self._class_of(generated)
        lengths = self._lengths.get(initial)
        if not lengths:
            return max(reached, initial)
        # The place at which each class begins among the sorted lengths beyond `generated`.
        starts = [bisect.bisect_left(lengths, max(n, generated + 1)) for n in (0, self._medium_from, self._long_from)]
        counts = [end - start for start, end in pairwise([*starts, len(lengths)])]
        if not any(counts):
            return LengthClass.LONG  # longer than all past responses with this initial class
        return max(reached, max(LengthClass, key=lambda c: (counts[c], c)))
