"""Are the probabilities right that a drafter states?"""

from collections.abc import Sequence

import numpy as np


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
