"""Drafts from remembered distributions know the noise. That they change no token: tests/identity/."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Engines, roll
from vllm import SamplingParams

from das.drafter import HistoryDrafter
from das.drafter.distributions import Distributions

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(6, 250, size=size).tolist() for size in (3, 40, 90, 17)]
PROBLEMS = [str(i % 4) for i in range(24)]
REMEMBER = {"drafter": {"remember": "distributions"}, "budget": {"name": "fixed", "tokens": 8}}


def asked(request: str) -> str:
    """The id that the caller gave a request."""
    return request.rpartition("-")[0]


def test_recorded_distributions_draft_what_the_engine_drafted(
    engines: Engines, repetitive_policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter that gets the calls of the engine's one, with what the rollouts recorded, drafts the same tokens."""
    calls: list[tuple[str, tuple[Any, ...], Any]] = []

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: HistoryDrafter, *args: Any, **kwargs: Any) -> Any:
            result = method(self, *args, **kwargs)
            calls.append((method.__name__, tuple(map(copy.copy, args)), result))
            return result

        return call

    for name in ("begin", "observe_batch", "propose_batch", "end", "move_window"):
        monkeypatch.setattr(HistoryDrafter, name, noted(getattr(HistoryDrafter, name)))
    llm = engines.fresh(repetitive_policy, method="das", **REMEMBER)
    recorded: dict[str, Any] = {}
    for step in (1, 2):
        params = [SamplingParams(temperature=1.0, max_tokens=60, seed=100 * step + i) for i in range(len(PROBLEMS))]
        recorded |= roll(llm, [PROMPTS[int(problem)] for problem in PROBLEMS], params, PROBLEMS, step)[2]["requests"]
    monkeypatch.undo()

    drafter, texts = HistoryDrafter(window=16, remember="distributions"), text_of_requests(calls)
    at = dict.fromkeys(texts, 0)
    num_drafted = 0
    for name, args, result in calls:
        if name == "begin":
            request, problem, prompt, seed = args
            assert seed == recorded[asked(request)]["seed"]
            drafter.begin(request, problem, prompt, recorded[asked(request)]["seed"])
        elif name == "observe_batch":
            rows = []
            for request, tokens in zip(args[0], args[1], strict=True):
                of_request = Distributions.from_text(recorded[asked(request)]["distributions"], len(texts[request]))
                rows.append(of_request.rows(texts[request])[at[request] :][: len(tokens)])
                at[request] += len(tokens)
            drafter.observe_batch(args[0], args[1], np.concatenate(rows))
        else:
            again = getattr(drafter, name)(*args)
            if name.startswith("propose"):
                num_drafted += result.counts.sum()
                assert again.counts.tolist() == result.counts.tolist()
                for row, count in enumerate(result.counts):
                    assert again.tokens[row, :count].tolist() == result.tokens[row, :count].tolist()
                    assert again.probs[row, :count].tolist() == result.probs[row, :count].tolist()
    assert num_drafted > 500


def text_of_requests(calls: list[tuple[str, tuple[Any, ...], Any]]) -> dict[str, np.ndarray]:
    """The tokens that each request emitted."""
    texts: dict[str, list[int]] = {}
    for name, args, _ in calls:
        if name == "observe_batch":
            for request, tokens in zip(args[0], args[1], strict=True):
                texts.setdefault(request, []).extend(tokens)
    return {request: np.array(tokens, np.int32) for request, tokens in texts.items()}


def test_greedy_requests_draft_without_noise(engines: Engines, repetitive_policy: str) -> None:
    llm = engines.fresh(repetitive_policy, method="das", **REMEMBER)
    for step in (1, 2):
        greedy = [SamplingParams(temperature=0.0, max_tokens=60) for _ in PROMPTS]
        tokens, _, report = roll(llm, PROMPTS, greedy, PROBLEMS[: len(PROMPTS)], step)
    assert report["passes"] < sum(map(len, tokens))


def test_drafts_know_the_noise(engines: Engines, repetitive_policy: str) -> None:
    """The policy stays as it is, so the noise and the distributions of an earlier rollout say what comes."""
    accepted = {}
    for remember in ("distributions", "tokens"):
        llm = engines.fresh(repetitive_policy, method="das", **{**REMEMBER, "drafter": {"remember": remember}})
        passes = 0
        for step in range(4):
            params = [
                SamplingParams(temperature=1.0, max_tokens=60, seed=1000 * step + i, ignore_eos=True)
                for i in range(len(PROBLEMS))
            ]
            tokens, _, report = roll(llm, [PROMPTS[int(problem)] for problem in PROBLEMS], params, PROBLEMS, step + 1)
            passes = report["passes"]
        accepted[remember] = sum(map(len, tokens)) / passes - 1
    assert accepted["distributions"] > 1.3 * accepted["tokens"], accepted
