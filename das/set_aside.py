"""Drafts from a request's own tokens, which it emitted before it was put aside, perhaps under older weights.

The request begins anew with the same seed, so the noise at each position is the same. Where the new weights hardly
differ from the old ones, the policy draws the same tokens again, and the draft is accepted. The first token that
differs is the new policy's, and the rest of the set-aside tokens is dropped. So every token of the response is the new
policy's.
"""

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from das.budget import LiveRequest
from das.drafter import Drafts


class SetAsideTokens:
    """Drafts the set-aside tokens of requests, and learns how probable it is that one of them is accepted."""

    def __init__(self) -> None:
        self.counts = np.array([19.0, 1.0])  # accepted and rejected, with a first guess: the policy changed little

    def begin(self, request: LiveRequest, emitted: Sequence[int], vocab: int) -> None:
        """Note a request that begins. emitted: the tokens that it has already, because it decoded elsewhere before.
        vocab: token ids from here on are none of the policy's, so nothing is drafted from the first of them on."""
        request.set_aside = list(takewhile(lambda token: token < vocab, request.set_aside))
        self._drop_if_other(request, 0, emitted)

    def observe(self, request: LiveRequest, num_drafted: int, num_accepted: int, emitted: Sequence[int]) -> None:
        """Learn from the tokens that a request emitted in a pass. `request.generated` does not count them yet."""
        if len(request.set_aside) <= request.generated:
            return
        if num_drafted:
            self.counts += num_accepted, num_accepted < num_drafted
        self._drop_if_other(request, request.generated, emitted)

    def _drop_if_other(self, request: LiveRequest, position: int, emitted: Sequence[int]) -> None:
        """Drop the set-aside tokens if the request emitted others, from this position on."""
        coming = request.set_aside[position:][: len(emitted)]
        if list(coming) != list(emitted[: len(coming)]):
            request.set_aside = ()

    def draft(self, requests: Sequence[LiveRequest], limits: Sequence[int], drafts: Drafts) -> Drafts:
        """Returns the drafts with the set-aside tokens of those requests that have some, at most limits[i] of them.
        drafts: of all requests; a request with set-aside tokens has none."""
        own = [list(each.set_aside[each.generated :][:limit]) for each, limit in zip(requests, limits, strict=True)]
        counts = np.array([*map(len, own)], np.int64)
        width = max(drafts.tokens.shape[1], int(counts.max()))
        tokens, probs = np.zeros((len(own), width), np.int32), np.zeros((len(own), width))
        tokens[:, : drafts.tokens.shape[1]], probs[:, : drafts.probs.shape[1]] = drafts.tokens, drafts.probs
        for row, draft in enumerate(own):
            tokens[row, : len(draft)] = draft
            probs[row, : len(draft)] = self.counts[0] / self.counts.sum()
        return Drafts(tokens, probs, counts + drafts.counts)
