"""Drafts from remembered distributions know the noise. That they change no token: tests/identity/. That those of a
recording draft again: tests/verify/test_forced.py.
"""

import numpy as np
from conftest import Engines, roll
from vllm import SamplingParams

from das.engine.settings import DasOptions

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(6, 250, size=size).tolist() for size in (3, 40, 90, 17)]
PROBLEMS = [str(i % 4) for i in range(24)]


def test_drafts_know_the_noise_and_greedy_requests_draft_without(engines: Engines, repetitive_policy: str) -> None:
    """The policy stays as it is, so the noise and the distributions of an earlier rollout say what comes."""
    llm = engines.build(repetitive_policy, method="das")
    accepted = {}
    for remember in ("distributions", "tokens"):
        options = DasOptions(drafter={"remember": remember}, budget={"name": "fixed", "tokens": 8})
        llm.collective_rpc("das_use_proposer", args=(remember, options))
        passes = 0
        for step in range(4):
            params = [
                SamplingParams(temperature=1.0, max_tokens=60, seed=1000 * step + i, ignore_eos=True)
                for i in range(len(PROBLEMS))
            ]
            prompts = [PROMPTS[int(problem)] for problem in PROBLEMS]
            tokens, _, report = roll(llm, prompts, params, PROBLEMS, step + 1)
            passes = report["passes"]
        accepted[remember] = sum(map(len, tokens)) / passes - 1
        for step in (5, 6):
            greedy = [SamplingParams(temperature=0.0, max_tokens=60) for _ in PROMPTS]
            tokens, _, report = roll(llm, PROMPTS, greedy, PROBLEMS[: len(PROMPTS)], step)
        assert report["passes"] < sum(map(len, tokens)), remember
    assert accepted["distributions"] > 1.3 * accepted["tokens"], accepted
