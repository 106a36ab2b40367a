"""Made-up drafts."""

from collections.abc import Sequence

import numpy as np

from das.drafter import Drafts


def batch(probs: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]] | None = None, width: int = 1) -> Drafts:
    """Drafts with these probabilities, and these tokens or any, in arrays of at least this width.

    The values behind the end of a draft are garbage, which nobody may read.
    """
    shape = (len(probs), max(width, *map(len, probs)))
    all_tokens, all_probs = np.full(shape, 99, np.int32), np.full(shape, 7.0)
    for row, of_row in enumerate(probs):
        all_probs[row, : len(of_row)] = of_row
        if tokens is not None:
            all_tokens[row, : len(of_row)] = tokens[row]
    return Drafts(all_tokens, all_probs, np.array([len(of_row) for of_row in probs], np.int64))
