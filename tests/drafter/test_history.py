"""The native history drafter answers exactly as the brute-force reference, and keeps its window and scopes."""

import gc
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from das.drafter import Draft, HistoryDrafter
from das.drafter.options import SCOPES
from das.drafter.reference import ReferenceDrafter, _exp, _log

BIG = 2**31 - 1
ALPHABETS = ([7], [0, 1], [0, 1, 2, BIG], list(range(BIG - 40, BIG + 1)), [k * 7919 % BIG for k in range(1000)])
PROBLEMS = ("p", "q")
ACTIONS = ("begin", "observe", "batch", "propose", "end", "end_step")


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


def drive(
    seed: int,
    steps: int,
    longest: int,
    scope: str,
    window: int,
    min_prob: float,
    max_candidates: int,
    cross_problem_tokens: int = 300,
) -> int:
    """Random operations on both drafters; returns how many tokens were drafted."""
    rng = np.random.default_rng(seed)
    options = {
        "scope": scope,
        "window": window,
        "min_prob": min_prob,
        "max_candidates": max_candidates,
        "cross_problem_tokens": cross_problem_tokens,
    }
    fast, slow = HistoryDrafter(**options), ReferenceDrafter(**options)  # type: ignore[arg-type]
    alphabet = ALPHABETS[rng.integers(len(ALPHABETS))]
    past: list[list[int]] = []
    live: dict[str, list[int]] = {}
    prompts = [random_text(rng, alphabet, [], 40) for _ in range(3)]
    drafted = began = 0
    for _ in range(steps):
        action = rng.choice(ACTIONS, p=[0.15, 0.2, 0.2, 0.3, 0.1, 0.05])
        if action == "begin" or not live:
            request, began = f"r{began}", began + 1
            prompt = prompts[rng.integers(3)]
            problem = PROBLEMS[rng.integers(2)]
            for d in (fast, slow):
                d.begin(request, problem, prompt)
            live[request] = list(prompt)
        elif action == "observe":
            request = str(rng.choice(list(live)))
            new = random_text(rng, alphabet, past + list(live.values()), longest)
            fast.observe(request, np.array(new, np.int64) if rng.integers(2) else new)
            slow.observe(request, new)
            live[request] += new
        elif action == "batch":
            news = [random_text(rng, alphabet, past + list(live.values()), 3) for _ in live]
            for d in (fast, slow):
                d.observe_batch(list(live), news)
            for text, new in zip(live.values(), news, strict=True):
                text += new
        elif action == "propose":
            limits = [int(n) for n in rng.integers(0, 12, len(live))]
            floors = None if rng.integers(2) else rng.random(len(live)).tolist()
            answer = fast.propose(list(live), limits, floors)
            assert_same(answer, slow.propose(list(live), limits, floors))
            assert all(len(a.tokens) <= n for a, n in zip(answer, limits, strict=True))
            drafted += sum(len(a.tokens) for a in answer)
        elif action == "end":
            request = str(rng.choice(list(live)))
            keep = bool(rng.integers(4))
            for d in (fast, slow):
                d.end(request, keep=keep)
            past.append(live.pop(request))
        else:
            clock = fast.clock + int(rng.integers(0, 3))
            for d in (fast, slow):
                d.end_step(clock)
        assert fast.history_tokens == slow.history_tokens
        assert fast.live_tokens == slow.live_tokens
    return drafted


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    scope=st.sampled_from(SCOPES),
    window=st.sampled_from([0, 1, 2, 16]),
    min_prob=st.sampled_from([0.0, 0.01, 0.1, 0.5]),
    max_candidates=st.sampled_from([1, 3, 32, 64]),
    cross_problem_tokens=st.sampled_from([0, 20, 65536]),
)
def test_equals_reference(
    seed: int, scope: str, window: int, min_prob: float, max_candidates: int, cross_problem_tokens: int
) -> None:
    drive(seed, 60, 8, scope, window, min_prob, max_candidates, cross_problem_tokens)


@pytest.mark.parametrize("scope", SCOPES)
def test_equals_reference_on_long_texts_with_sweeps(scope: str) -> None:
    """Enough tokens that blocks fill up, tables grow and evicted history is swept and its blocks reused."""
    assert drive(5, 150, 150, scope, 2, 0.02, 16, 300) > 0


def test_exp_and_log_are_right_to_eight_digits() -> None:
    """The native core's own operations; that it has the same bits follows from the tests above."""
    for x in np.concatenate([-np.logspace(-9, math.log10(39.9), 500), [0.0]]).tolist():
        assert _exp(x) == pytest.approx(math.exp(x), rel=1e-8)
    assert _exp(-1000.0) == _exp(-40.0)
    for x in [*np.logspace(-300, 300, 2001).tolist(), 1.0, 0.5, math.sqrt(0.5), 1 - 1e-16]:
        assert _log(x) == pytest.approx(math.log(x), rel=1e-8, abs=1e-15)


def test_empty_and_tiny_contexts() -> None:
    drafter = HistoryDrafter()
    drafter.begin("a", "p", [])
    drafter.observe("a", [])
    assert drafter.propose(["a"], [8]) == [Draft([], [])]
    drafter.observe("a", [5])
    assert drafter.propose(["a"], [8]) == [Draft([], [])]
    assert drafter.propose([], []) == []


def test_repeated_token_drafts_to_the_limit() -> None:
    drafter = HistoryDrafter(min_prob=0.0)
    drafter.begin("a", "p", [3] * 500)
    (draft,) = drafter.propose(["a"], [40])
    assert draft.tokens == [3] * 40
    assert all(0.5 < p < 1 for p in draft.probs)


def test_limit_zero_is_empty() -> None:
    drafter = HistoryDrafter()
    drafter.begin("a", "p", [1, 2] * 20)
    assert drafter.propose(["a"], [0]) == [Draft([], [])]


def test_cumulative_probability_stays_above_min_prob() -> None:
    drafter = HistoryDrafter(min_prob=0.3)
    drafter.begin("a", "p", [1, 2, 3, 1, 2, 4] * 20)
    (draft,) = drafter.propose(["a"], [100])
    assert draft.tokens
    assert np.prod(draft.probs) >= 0.3


TEXT = list(range(100, 140))


def drafts_text(drafter: HistoryDrafter, prompt: list[int] | None = None) -> bool:
    """Whether a fresh request of problem p that has emitted the start of TEXT drafts its continuation."""
    drafter.begin("probe", "p", prompt or [])
    drafter.observe("probe", TEXT[:6])
    (draft,) = drafter.propose(["probe"], [1])
    drafter.end("probe", keep=False)
    return draft.tokens == [TEXT[6]]


def finish(drafter: HistoryDrafter, keep: bool = True) -> None:
    drafter.begin("done", "p", [])
    drafter.observe("done", TEXT)
    drafter.end("done", keep=keep)


def test_history_enters_moves_and_leaves_with_the_window() -> None:
    drafter = HistoryDrafter(window=3)
    finish(drafter)
    assert drafter.history_tokens == len(TEXT)
    assert drafter.live_tokens == 0
    for clock in (1, 2):
        drafter.end_step(clock)
        assert drafts_text(drafter)
    drafter.end_step(3)
    assert not drafts_text(drafter)
    assert drafter.history_tokens == 0


def test_dropped_requests_and_window_zero_leave_no_history() -> None:
    dropping = HistoryDrafter()
    finish(dropping, keep=False)
    none = HistoryDrafter(window=0)
    finish(none)
    for drafter in (dropping, none):
        assert drafter.history_tokens == 0
        assert not drafts_text(drafter)


@pytest.mark.parametrize(
    ("scope", "history", "sibling", "own"),
    [
        ("problem+request", True, True, True),
        ("problem", True, True, False),
        ("siblings", False, True, True),
        ("own", False, False, True),
    ],
)
def test_scopes(scope: str, history: bool, sibling: bool, own: bool) -> None:
    past = HistoryDrafter(scope=scope)
    finish(past)
    assert drafts_text(past) == history
    live = HistoryDrafter(scope=scope)
    live.begin("sibling", "p", [])
    live.observe("sibling", TEXT)
    assert drafts_text(live) == sibling
    assert drafts_text(HistoryDrafter(scope=scope), prompt=TEXT) == own


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, True),
        ({"cross_problem_tokens": 0}, False),
        ({"scope": "global+request"}, True),
        ({"scope": "siblings"}, False),
    ],
)
def test_other_problems_are_a_fallback(options: dict, seen: bool) -> None:
    drafter = HistoryDrafter(**options)
    drafter.begin("other", "q", [])
    drafter.observe("other", TEXT)
    drafter.end("other")
    assert drafts_text(drafter) == seen
    drafter.end_step(drafter.window + 1)
    assert not drafts_text(drafter)


def test_other_problems_texts_make_room_oldest_first() -> None:
    drafter = HistoryDrafter(cross_problem_tokens=2 * len(TEXT))
    for i, problem in enumerate(("q", "r", "s")):
        drafter.begin("other", problem, [])
        drafter.observe("other", [token + 1000 * i for token in TEXT])
        drafter.end("other")
    for i, seen in enumerate((False, True, True)):
        drafter.begin("probe", "p", [])
        drafter.observe("probe", [token + 1000 * i for token in TEXT[:6]])
        (draft,) = drafter.propose(["probe"], [1])
        drafter.end("probe", keep=False)
        assert bool(draft.tokens) == seen


def test_warm_history(tmp_path: Path) -> None:
    past = HistoryDrafter()
    finish(past)
    past.end_step(7)
    past.save(tmp_path / "history.npz")
    warm = HistoryDrafter(warm=tmp_path / "history.npz", window=8)
    assert warm.history_tokens == len(TEXT)
    assert drafts_text(warm)
    warm.end_step(0)  # a new run starts its own clock; what was 7 old goes on from there
    assert warm.history_tokens == len(TEXT)
    warm.end_step(1)
    assert warm.history_tokens == 0


def test_probabilities_are_learned_and_saved(tmp_path: Path) -> None:
    """A context that is followed by one token 7 times of 10 ends up near 0.7, and a loaded drafter knows it."""
    rng = np.random.default_rng(1)
    drafter = HistoryDrafter(min_prob=0.0)
    drafter.begin("a", "p", [])
    drafter.observe("a", [1])
    probs = []
    for _ in range(6000):
        (draft,) = drafter.propose(["a"], [1])
        probs += draft.probs
        drafter.observe("a", [2 if rng.random() < 0.7 else int(rng.integers(100, 10**9)), 1])
    assert np.mean(probs[-500:]) == pytest.approx(0.7, abs=0.05)
    drafter.save(tmp_path / "history.npz")
    loaded = HistoryDrafter(warm=tmp_path / "history.npz")
    assert np.array_equal(loaded.weights(), drafter.weights())
    assert not np.array_equal(loaded.weights(), HistoryDrafter().weights())


def test_save_and_load(tmp_path) -> None:
    drafter = HistoryDrafter(window=4)
    rng = np.random.default_rng(0)
    for clock in range(6):
        drafter.end_step(clock)
        for problem in ("p", "q\0ü"):
            drafter.begin("r", problem, rng.integers(0, 4, 50))
            drafter.observe("r", rng.integers(0, 4, 200))
            drafter.end("r")
    drafter.save(tmp_path / "history.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["history.npz"]
    loaded = HistoryDrafter(window=4)
    finish(loaded)  # replaced by the load
    loaded.load(tmp_path / "history.npz")
    assert (loaded.clock, loaded.history_tokens) == (drafter.clock, drafter.history_tokens) == (5, 4 * 2 * 200)
    for clock in (5, 7, 9):
        for d in (drafter, loaded):
            d.end_step(clock)
            d.begin("r", "p", [0, 1, 2, 3] * 3)
        assert_same(loaded.propose(["r"], [16]), drafter.propose(["r"], [16]))
        for d in (drafter, loaded):
            d.end("r", keep=False)
    short = HistoryDrafter(window=1)
    short.load(tmp_path / "history.npz")
    assert short.history_tokens == 2 * 200
    short.begin("live", "p", [])
    with pytest.raises(ValueError, match="live"):
        short.load(tmp_path / "history.npz")


def test_memory_is_returned_when_history_leaves() -> None:
    drafter = HistoryDrafter(window=1)
    empty = drafter.index_bytes
    for clock in range(5):
        drafter.end_step(clock)
        for i in range(8):
            drafter.begin(f"{i}", "p", [])
            drafter.observe(f"{i}", np.random.default_rng(clock * 8 + i).integers(0, 1000, 2000))
        assert drafter.index_bytes < 200 * 8 * 2000
        for i in range(8):
            drafter.end(f"{i}")
    drafter.end_step(9)
    assert drafter.index_bytes < empty + 10_000


@pytest.mark.parametrize(
    "options",
    [
        {"window": -1},
        {"scope": "global"},
        {"min_prob": 1.5},
        {"max_candidates": 0},
        {"cross_problem_tokens": -1},
    ],
)
def test_bad_options(options: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(options))) as error:
        HistoryDrafter(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [[-1], [2**31], [1, 2**40], np.array([-5]), np.array([2**31]), np.array([0.5])])
def test_bad_tokens_store_nothing(bad) -> None:
    drafter = HistoryDrafter()
    drafter.begin("a", "p", [])
    with pytest.raises(ValueError, match="token ids"):
        drafter.observe_batch(["a", "a"], [[1, 2], bad])
    assert drafter.live_tokens == 0
    assert drafter.propose(["a"], [4]) == [Draft([], [])]
    with pytest.raises(ValueError, match="token ids"):
        drafter.begin("b", "p", bad)
    drafter.begin("b", "p", [])


def test_misuse_is_one_clear_error() -> None:
    drafter = HistoryDrafter()
    drafter.begin("a", "p", [])
    with pytest.raises(ValueError, match="'a' has already begun"):
        drafter.begin("a", "p", [])
    for call in (lambda: drafter.observe("x", [1]), lambda: drafter.end("x"), lambda: drafter.propose(["x"], [1])):
        with pytest.raises(ValueError, match="'x' is not live"):
            call()
    with pytest.raises(ValueError, match="limits"):
        drafter.propose(["a"], [-1])
    with pytest.raises(ValueError, match="2 limits"):
        drafter.propose(["a"], [1, 1])
    drafter.end_step(3)
    with pytest.raises(ValueError, match="clock"):
        drafter.end_step(2)


def test_drafters_are_independent_across_threads() -> None:
    """Native calls release the GIL: two drafters in two threads do not disturb each other."""
    results: list[int] = []

    def work(seed: int) -> None:
        results.append(drive(seed, 40, 8, SCOPES[0], 2, 0.1, 8, 300))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 2
    gc.collect()
