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
from das.drafter.texts import private_part

FIRST = np.array([19.0, 1.0])  # accepted and rejected tokens, a first guess: the policy changed little
KEPT = 0.99  # of what was learned, at each further request: another update of the policy may change more, or less
MOST_PARTS = 1024  # clients with a cache_salt of their own, of which what was learned is kept


class SetAsideTokens:
    """Drafts the set-aside tokens of requests, and learns how probable it is that one of them is accepted.

    It learns apart for clients whose histories are apart (`cache_salt`), and forgets what was long ago.
    """

    def __init__(self) -> None:
        self._learned = {"": np.zeros(2)}  # counts of accepted and rejected tokens, by the private part of problem ids

    @property
    def counts(self) -> np.ndarray:
        """Accepted and rejected tokens of requests without a salt, with the first guess: float64 [2]."""
        return FIRST + self._learned[""]

    def restore(self, counts: np.ndarray) -> None:
        """Continue from `counts`."""
        self._learned[""] = np.maximum(counts - FIRST, 0)

    def _share(self, request: LiveRequest) -> float:
        """Returns the probability that one of the request's set-aside tokens is accepted."""
        counts = FIRST + self._learned.get(private_part(request.problem), 0)
        return float(counts[0] / counts.sum())

    def begin(self, request: LiveRequest, emitted: Sequence[int], vocab: int) -> None:
        """Note a request that begins. emitted: the tokens that it has already, because it decoded elsewhere before.
        vocab: token ids from here on are none of the policy's, so nothing is drafted from the first of them on."""
        part = private_part(request.problem)
        self._learned[part] = KEPT * self._learned.pop(part, np.zeros(2))  # it is the newest now
        if len(self._learned) > MOST_PARTS:
            del self._learned[next(oldest for oldest in self._learned if oldest)]
        request.set_aside = list(takewhile(lambda token: token < vocab, request.set_aside))
        self._drop_if_other(request, 0, emitted)

    def observe(self, request: LiveRequest, num_drafted: int, num_accepted: int, emitted: Sequence[int]) -> None:
        """Learn from the tokens that a request emitted in a pass. `request.generated` does not count them yet."""
        if len(request.set_aside) <= request.generated:
            return
        learned = self._learned.get(private_part(request.problem))
        if num_drafted and learned is not None:
            # What lies behind the response's end, and does not count as accepted, was not rejected either.
            learned += num_accepted, num_accepted < num_drafted and not request.stopped
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
            probs[row, : len(draft)] = self._share(requests[row]) if draft else 0
        return Drafts(tokens, probs, counts + drafts.counts)
