"""How well remembered distributions foretell a recorded text, by the length of the longest match."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from das.drafter.distributions import LEVELS_PER_NAT, NO_PAIR
from das.verify.noise import keyed_draft
from experiments.recorded.drafter_replay import Problems, Recorded, request_name

LENGTHS = (32, 16, 8, 4, 2, 1)  # lower ends of the buckets of match lengths, in tokens
ROWS = 64  # positions whose tokens are drawn at once, with one logit for each token of the vocabulary


@dataclass(frozen=True)
class Match:
    """A position of a response, and the nearest earlier place with the longest match.

    length: the lower end of the match's bucket. emitted, came: the tokens at the position and at the place.
    pairs: the distribution at the place, uint32 [PAIRS]. seed, position: of the noise at the position.
    """

    length: int
    emitted: int
    came: int
    pairs: np.ndarray
    seed: int
    position: int


def matches_of(problem: str, responses: list[np.ndarray], recorded: Recorded, group: int) -> Iterator[Match]:
    """Yield the match of each position that has one. Siblings decode in lock step, and groups follow one another."""
    places: dict[tuple[int, ...], tuple[int, np.ndarray]] = {}  # by a text: what came after it last
    for first in range(0, len(responses) - group + 1, group):
        siblings = []
        for i in range(first, first + group):
            tokens, sampling = recorded[request_name(problem, group, i)]
            siblings.append((tokens.tolist(), sampling.distributions.rows(tokens), sampling.seed))
        for at in range(max(len(tokens) for tokens, _, _ in siblings)):
            live = [sibling for sibling in siblings if at < len(sibling[0])]
            for tokens, _, seed in live:
                for length in LENGTHS:
                    place = places.get(tuple(tokens[at - length : at])) if at >= length else None
                    if place is not None and seed is not None:
                        yield Match(length, tokens[at], *place, seed, at)
                        break
            for tokens, rows, _ in live:
                for length in LENGTHS:
                    if at >= length:
                        places[tuple(tokens[at - length : at])] = (tokens[at], rows[at])


def by_match_length(problems: Problems, recorded: Recorded, group: int) -> list[dict[str, Any]]:
    """Return a row for each bucket of match lengths, the longest first.

    match: the bucket's lower end; positions: how many; coupled, likeliest, came: the share of positions at which the
    emitted token is the one that the noise picks from the distribution at the place, the distribution's likeliest
    token, and the token that came there.
    """
    matches = [match for problem, responses in problems for match in matches_of(problem, responses, recorded, group)]
    matches = [match for match in matches if match.pairs[0] != NO_PAIR]
    vocab = 1 + max((max(m.emitted, int(m.pairs[m.pairs != NO_PAIR].max() >> 5)) for m in matches), default=0)
    hits = {length: np.zeros(4, np.int64) for length in LENGTHS}
    for start in range(0, len(matches), ROWS):
        part = matches[start : start + ROWS]
        logits = torch.full((len(part), vocab), -torch.inf)
        for i, match in enumerate(part):
            listed = match.pairs[match.pairs != NO_PAIR].astype(np.int64)
            logits[i, listed >> 5] = torch.from_numpy((listed & 31) / -LEVELS_PER_NAT).float()
        seeds, positions = (np.array([getattr(m, key) for m in part], np.int64) for key in ("seed", "position"))
        drawn, _ = keyed_draft(logits, np.array([1.0, np.inf], np.float32), seeds, positions)
        for match, (coupled, likeliest) in zip(part, drawn.tolist(), strict=True):
            hits[match.length] += [1, coupled == match.emitted, likeliest == match.emitted, match.came == match.emitted]
    rows = []
    for length, (positions_in, *found) in ((length, counts.tolist()) for length, counts in hits.items()):
        shares = dict(zip(("coupled", "likeliest", "came"), (n / max(positions_in, 1) for n in found), strict=True))
        rows.append({"match": length, "positions": positions_in, **shares})
    return rows
