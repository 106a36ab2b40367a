"""The native history drafter answers exactly as the brute-force reference, whatever is done to both."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import ReferenceDrafter
from reference_mix import exp_of, log_of

from das.drafter import Draft, HistoryDrafter
from das.drafter.distributions import NO_PAIR, PAIRS
from das.drafter.options import REMEMBERED

BIG = 2**31 - 1
ALPHABETS = ([7], [0, 1], [0, 1, 2, BIG], list(range(BIG - 40, BIG + 1)), [k * 7919 % BIG for k in range(1000)])
PROBLEMS = ("p", "q", "r")
ACTIONS = {
    "begin": 0.15,
    "observe": 0.15,
    "batch": 0.2,
    "propose": 0.35,
    "end": 0.1,
    "move_window": 0.05,
}


def random_text(rng: np.random.Generator, alphabet: list[int], past: list[list[int]], longest: int) -> list[int]:
    """New tokens, a stretch of an earlier text, or one token repeated."""
    n = int(rng.integers(0, longest + 1))
    kind = rng.integers(0, 3)
    if kind == 0 and past:
        text = past[rng.integers(len(past))]
        start = int(rng.integers(0, len(text) + 1))
        return text[start : start + n]
    if kind == 1:
        return [alphabet[rng.integers(len(alphabet))]] * n
    return [alphabet[i] for i in rng.integers(0, len(alphabet), n)]


def assert_same(fast: list[Draft], slow: list[Draft]) -> None:
    assert [d.tokens for d in fast] == [d.tokens for d in slow]
    for a, b in zip(fast, slow, strict=True):
        assert a.probs == b.probs
        assert len(a.probs) == len(a.tokens)


class Pair:
    """Both drafters with the same options. Each method does one random operation to both."""

    def __init__(self, rng: np.random.Generator, max_new_tokens: int, **options: Any) -> None:
        self.rng = rng
        self.max_new_tokens = max_new_tokens
        self.fast, self.slow = HistoryDrafter(**options), ReferenceDrafter(**options)
        self.alphabet = ALPHABETS[rng.integers(len(ALPHABETS))]
        self.past: list[list[int]] = []
        self.live: dict[str, list[int]] = {}
        self.prompts = [random_text(rng, self.alphabet, [], 40) for _ in range(3)]
        self.num_begun = self.num_drafted = 0

    def new_tokens(self, max_tokens: int) -> list[int]:
        return random_text(self.rng, self.alphabet, self.past + list(self.live.values()), max_tokens)

    def begin(self) -> None:
        request = f"r{self.num_begun}"
        self.num_begun += 1
        prompt = self.prompts[self.rng.integers(3)]
        problem = PROBLEMS[self.rng.integers(len(PROBLEMS))]
        seed = int(self.rng.integers(-(2**63), 2**63)) if self.rng.integers(4) else None
        for d in (self.fast, self.slow):
            d.begin(request, problem, prompt, seed)
        self.live[request] = list(prompt)

    def remembered(self, tokens: list[int]) -> np.ndarray | None:
        """Some distributions for these tokens: any, without the token, or unknown. None: all are unknown."""
        if not self.rng.integers(4):
            return None
        rows = np.full((len(tokens), PAIRS), NO_PAIR, np.uint32)
        for row, token in zip(rows, tokens, strict=True):
            listed = [token, *(self.alphabet[i] for i in self.rng.integers(0, len(self.alphabet), PAIRS))]
            listed = listed[self.rng.integers(2) :][: self.rng.integers(0, PAIRS + 1)]
            for i, other in enumerate(listed):
                row[i] = other % 2**26 << 5 | int(self.rng.integers(0, 32) if self.rng.integers(2) else i)
        return rows

    def observe(self) -> None:
        request = str(self.rng.choice(list(self.live)))
        new = self.new_tokens(self.max_new_tokens)
        remembered = self.remembered(new)
        self.fast.observe(request, np.array(new, np.int64) if self.rng.integers(2) else new, remembered)
        self.slow.observe(request, new, None if remembered is None else remembered.tolist())
        self.live[request] += new

    def batch(self) -> None:
        news = [self.new_tokens(3) for _ in self.live]
        remembered = self.remembered([token for new in news for token in new])
        self.fast.observe_batch(list(self.live), news, remembered)
        self.slow.observe_batch(list(self.live), news, None if remembered is None else remembered.tolist())
        for text, new in zip(self.live.values(), news, strict=True):
            text += new

    def propose(self) -> None:
        names = list(self.live)
        limits = [int(n) for n in self.rng.integers(0, 12, len(names))]
        floors = None if self.rng.integers(2) else self.rng.random(len(names)).tolist()
        drafts = self.fast.propose(names, limits, floors)
        assert_same(drafts, self.slow.propose(names, limits, floors))
        assert all(len(draft.tokens) <= limit for draft, limit in zip(drafts, limits, strict=True))
        self.num_drafted += sum(len(draft.tokens) for draft in drafts)

    def end(self) -> None:
        request = str(self.rng.choice(list(self.live)))
        keep = bool(self.rng.integers(4))
        for d in (self.fast, self.slow):
            d.end(request, keep=keep)
        self.past.append(self.live.pop(request))

    def move_window(self) -> None:
        tick = self.fast.history_tick + int(self.rng.integers(0, 3))
        for d in (self.fast, self.slow):
            d.move_window(tick)


def drive(seed: int, steps: int, max_new_tokens: int, **options: Any) -> int:
    """Do random operations to both drafters and compare all answers; returns how many tokens were drafted."""
    rng = np.random.default_rng(seed)
    pair = Pair(rng, max_new_tokens, **options)
    for _ in range(steps):
        action = rng.choice(list(ACTIONS), p=list(ACTIONS.values()))
        getattr(pair, action if pair.live else "begin")()
        assert pair.fast.history_tokens == pair.slow.history_tokens
    return pair.num_drafted


@settings(max_examples=max(100, settings.default.max_examples), suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    window=st.sampled_from([0, 1, 2, 16]),
    min_prob=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    max_candidates=st.sampled_from([1, 3, 32, 64]),
    cross_problem_tokens=st.sampled_from([0, 20, 65536]),
    remember=st.sampled_from(REMEMBERED),
)
def test_equals_reference(seed: int, **options: Any) -> None:
    drive(seed, 60, 8, **options)


@pytest.mark.parametrize("remember", REMEMBERED)
def test_equals_reference_on_long_texts_with_sweeps(remember: str) -> None:
    """The texts are long enough to fill blocks, grow tables, sweep evicted history and reuse its blocks."""
    options = {"window": 2, "min_prob": 0.02, "max_candidates": 16, "cross_problem_tokens": 300, "remember": remember}
    assert drive(5, 150, 150, **options) > 0


def test_exp_and_log_are_correct_to_eight_digits() -> None:
    """The reference uses the native core's operations; the tests above show that both have the same bits."""
    for x in np.concatenate([-np.logspace(-9, math.log10(39.9), 500), [0.0]]).tolist():
        assert exp_of(x) == pytest.approx(math.exp(x), rel=1e-8)
    assert exp_of(-1000.0) == exp_of(-40.0)
    for x in [*np.logspace(-300, 300, 2001).tolist(), 1.0, 0.5, math.sqrt(0.5), 1 - 1e-16]:
        assert log_of(x) == pytest.approx(math.log(x), rel=1e-8, abs=1e-15)
