"""The reference's predictor: recall.h in plain Python, with the same doubles computed in the same order."""

from __future__ import annotations

import numpy as np
from reference_mix import BEST, VARIETIES, Mixed, Occurrence, Votes, bucket, exp_of, log_of, normalized, set_ranks

from das.drafter.native import NOISY_PRIOR, PRIOR

RECALL_RATE = 0.002
RARE = 22  # the level of tokens that a distribution does not list
MASK = 2**32 - 1
F = np.float32


class Mixture(Votes):
    """The weights of drafts, with the noise or without, and what they make of occurrences."""

    def __init__(self, knows_noise: bool) -> None:
        super().__init__(NOISY_PRIOR if knows_noise else PRIOR)
        self.knows_noise = knows_noise

    def foresee(self, occurrences: list[Occurrence], position: int, key: int) -> Mixed:
        """Probabilities of the BEST next tokens, and of none of them. key: the noise key of the next token, if it is
        known."""
        set_ranks(occurrences)
        share: dict[int, float] = {}
        everything = missing = 0.0
        for o in occurrences:
            weight = self._weight(o.cross_problem, o.bucket, o.source, o.rank)
            everything += weight
            listed = 0.0
            for token, level in o.pairs:
                share[token] = share.get(token, 0.0) + weight * exp_of(-0.25 * level)
                listed += exp_of(-0.25 * level)
            if not o.pairs:
                share[o.token] = share.get(o.token, 0.0) + weight
            elif listed < 1.0:
                missing += weight * (1.0 - listed)
        top = bucket(max((o.match for o in occurrences if not o.cross_problem), default=0))
        variety = min(len(share), VARIETIES - 1)
        none = self._weights["none"][top][variety]
        everything += none
        v = self._weights["recall"][top]
        known = [o for o in occurrences if o.pairs or not self.knows_noise]
        nearest = max(known, key=lambda o: o.match) if known else None  # the first of equals
        beside = nearest.pairs or [(nearest.token, 0)] if nearest else []
        none_log = log_of((none + missing) / everything)
        unlisted = _log_unlisted(beside) if nearest else 0.0
        rows = []
        for token, weight in share.items():
            near = _log_prob(beside, token) if nearest else 0.0
            features = [log_of(weight / everything), near, gumbel(key, token) if self.knows_noise else 0.0]
            score = v[0] * features[0] + v[1] * features[1] + v[2] * features[2]
            rows.append((score, token, features))
        rows = sorted(rows, key=lambda row: -row[0])[:BEST]
        probs, none_prob = normalized([row[0] for row in rows], v[0] * none_log + v[3] * unlisted + v[4])
        tokens = [row[1] for row in rows]
        votes = [(o.token, int(o.cross_problem), o.bucket, o.source, o.rank) for o in occurrences]
        best, corrected = self._corrected(position, probs)
        mixed = Mixed(
            votes, top, variety, tokens, [row[2] for row in rows], none_log, probs, none_prob, occurrences,
            tokens[best], corrected,
        )  # fmt: skip
        mixed.nearest, mixed.unlisted, mixed.pairs = nearest, unlisted, [o.pairs for o in occurrences]
        return mixed

    def learn(self, m: Mixed, token: int) -> None:
        """Take one step up the gradient of log P(token)."""
        v = self._weights["recall"][m.top]
        for best, features, prob in zip(m.tokens, m.features, m.probs, strict=True):
            g = RECALL_RATE * ((best == token) - prob)
            for i, feature in enumerate(features):
                v[i] += g * feature
        g = RECALL_RATE * ((token not in m.tokens) - m.none_prob)
        v[0] += g * m.none_log
        v[3] += g * m.unlisted
        v[4] += g
        correct = []
        for (next_token, *_), pairs in zip(m.votes, m.pairs, strict=True):
            part = 0.0 if pairs else float(next_token == token)
            for listed, level in pairs:
                part = exp_of(-0.25 * level) if listed == token else part
            correct.append(part)
        self._learn_votes(m, correct)


def pairs_beside(token: int, row: list[int]) -> list[tuple[int, int]]:
    """What is remembered of a distribution beside its sampled token. row: its words; 2**32 - 1 ends it."""
    pairs = []
    for word in row:
        if word == MASK:
            break
        pairs.append((word >> 5, word & 31))
    pairs = [pair for pair in pairs if pair[0] < 2**26 and pair[1] < 30]  # others cannot be kept
    return [pair for pair in pairs if pair[0] == token][-1:] + [pair for pair in pairs if pair[0] != token]


def _log_prob(pairs: list[tuple[int, int]], token: int) -> float:
    return -0.25 * next((level for listed, level in pairs if listed == token), RARE)


def _log_unlisted(pairs: list[tuple[int, int]]) -> float:
    missing = 1.0
    for _, level in pairs:
        missing -= exp_of(-0.25 * level)
    return log_of(missing) if missing > exp_of(-0.25 * RARE) else -0.25 * RARE


def noise_key(seed: int, position: int) -> int:
    """The 64-bit noise key of a position."""
    return _splitmix64(_splitmix64(seed % 2**64) ^ position)


def _splitmix64(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def _mix32(h: int) -> int:
    h ^= h >> 16
    h = h * 0x21F0AAAD & MASK
    h ^= h >> 15
    h = h * 0xD35A2D97 & MASK
    return h ^ (h >> 15)


def _soft_log(x: np.float32) -> np.float32:
    bits = int(x.view(np.int32))
    e = ((bits - 0x3F3504F3) >> 23) & 0x1FF
    e = (e ^ 0x100) - 0x100
    m = np.int32(bits - (e << 23)).view(F)
    s = (m - F(1.0)) / (m + F(1.0))
    z = s * s
    p = F(0.22222222)
    for coefficient in (0.2857142857, 0.4, 0.6666666667, 2.0):
        p = p * z + F(coefficient)
    return F(e) * F(0.69314718056) + s * p


def gumbel(key: int, token: int) -> float:
    """The noise of a token."""
    x = _mix32(_mix32((token * 0x9E3779B1 + (key & MASK)) & MASK) ^ (key >> 32))
    w = min((F(x >> 1) + F(0.5)) * F(4.656612873e-10), F(0.99999994))
    u = F(1.0) - w
    d = F(1.0) - u
    e = -_soft_log(u) * w / d if d > 0 else w
    return float(-_soft_log(e))
