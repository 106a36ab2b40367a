"""The judge looks at each rollout, and says in one line if its drafts do not work, with the usual causes. Beside it:
how right the probabilities of drafted tokens are.

A drafter without its history or with wrong problem ids still runs and still changes no token. Without this line only
the rollout's time would show it.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np

COLLAPSE = 3.0  # far fewer accepted tokens are less than the usual number divided by this
USUAL = 8  # "usual" is the median of this many rollouts
ENOUGH = 3  # with fewer rollouts there is no "usual"
MIN_PASSES = 100  # a rollout with fewer target passes (summed over requests) is judged together with the next
MIN_ACCEPTED = 0.1  # if usually fewer tokens are accepted per pass, there is no "far fewer"
CAUSES = (
    "Usual causes: problem ids are mixed up or all new (column problem_id of a dataset, das_problem of a request); the "
    "weights or the temperature changed (weight sync, checkpoint); the history is lost or stale (call das_end_rollout "
    "once after each rollout); drafter.window, drafter.min_prob or the budget is too strict"
)


class Judge:
    """Judges the rollouts of one drafter in one engine, one after the other."""

    def __init__(self) -> None:
        self.usual: deque[tuple[float, float]] = deque(maxlen=USUAL)  # accepted per pass, accepted per drafted token
        self.short = 0, 0, 0, False  # what `lines` was told of rollouts too short to be judged

    def lines(self, passes: int, drafted: int, accepted: int, declined: bool = False) -> list[str]:
        """Judge the rollout that ended. Returns a line if its drafts do not work; [] if they do.

        passes, drafted, accepted: sums over its requests that may draft. declined: whether there was a pass for which
        the budget let nobody draft.
        """
        passes, drafted, accepted = passes + self.short[0], drafted + self.short[1], accepted + self.short[2]
        declined |= self.short[3]
        if passes < MIN_PASSES:
            self.short = passes, drafted, accepted, declined
            return []
        self.short = 0, 0, 0, False
        now, share = accepted / passes, accepted / max(1, drafted)
        known = self.usual if len(self.usual) >= ENOUGH else [(0.0, 0.0)]
        usual, usual_share = (median(column) for column in zip(*known, strict=True))
        self.usual.append((now, share))
        if not drafted and declined:
            return [
                f"nothing was drafted in {passes} passes: the budget let nobody draft, because drafts cost more time "
                "here than they save. budget=fixed drafts whatever the clock says"
            ]
        if not drafted:
            return [f"nothing was drafted in {passes} passes, though requests may draft. {CAUSES}"]
        if not accepted:
            return [f"none of {drafted} drafted tokens was accepted in {passes} passes. {CAUSES}"]
        # Fewer drafts that are as good as ever were the budget's choice: a pass with drafts may take too long.
        budget_chose = declined and share * COLLAPSE >= usual_share
        if usual > MIN_ACCEPTED and now * COLLAPSE < usual and not budget_chose:
            return [f"far fewer tokens were accepted than usual: {now:.2f} a pass, {usual:.2f} usually. {CAUSES}"]
        return []


class TokenCalibration:
    """Compares the probabilities that a drafter states with the share of such tokens that was accepted, in bins.

    Only tokens up to the first rejected one count, because later tokens were not verified.
    """

    BINS = 20

    def __init__(self) -> None:
        # For each bin: tokens verified, the sum of their predicted probabilities, tokens accepted.
        self.counts = np.zeros((3, self.BINS))

    def observe(self, probs: Sequence[float], num_accepted: int) -> None:
        """Learn from one draft. probs[j]: P(token j is accepted | all tokens before it were accepted)."""
        verified = np.asarray(probs[: num_accepted + 1], dtype=np.float64)
        accepted = np.arange(len(verified)) < num_accepted
        bins = np.minimum((verified * self.BINS).astype(int), self.BINS - 1)
        self.counts += [np.bincount(bins, weights, self.BINS) for weights in (None, verified, accepted)]

    @property
    def error(self) -> float:
        """The expected calibration error over the verified tokens: 0 for a calibrated drafter.

        Each bin of probabilities counts |sum of probabilities - accepted tokens|, divided by all verified tokens.
        """
        verified, predicted, accepted = self.counts
        return float(np.abs(predicted - accepted).sum() / max(1.0, verified.sum()))
