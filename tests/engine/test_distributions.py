"""Drafts from remembered distributions know the noise, and so do those from recorded ones. That they change no token:
tests/identity/.
"""

from typing import Any

import numpy as np
from conftest import PROMPTS, Engines, roll
from vllm import SamplingParams

from das.drafter.distributions import Distributions
from das.engine.patches.front_end import let_force
from das.engine.settings import DasOptions
from das.verify.admission import FORCED_KEY

END = 260  # ends a response
PROBLEMS = [str(i % 4) for i in range(24)]
BUDGET: dict[str, Any] = {"name": "fixed", "tokens": 8}
SETTINGS: dict[str, Any] = {"method": "das", "drafter": {"remember": "distributions"}, "budget": BUDGET}


def test_drafts_know_the_noise_and_greedy_requests_draft_without(engines: Engines, repetitive_policy: str) -> None:
    """The policy stays as it is, so the noise and the distributions of an earlier rollout say what comes."""
    llm = engines.build(repetitive_policy, **SETTINGS)
    accepted = {}
    for remember in ("distributions", "tokens"):
        options = DasOptions(drafter={"remember": remember}, budget=BUDGET)
        llm.collective_rpc("das_use_proposer", args=(remember, options))
        for step in range(4):
            params = [
                SamplingParams(temperature=1.0, max_tokens=60, seed=1000 * step + i, ignore_eos=True)
                for i in range(len(PROBLEMS))
            ]
            prompts = [PROMPTS[int(problem)] for problem in PROBLEMS]
            tokens, _, report = roll(llm, prompts, params, PROBLEMS, step + 1)
        accepted[remember] = sum(map(len, tokens)) / report["passes"] - 1
        for step in (5, 6):
            greedy = [SamplingParams(temperature=0.0, max_tokens=60) for _ in PROMPTS]
            tokens, _, report = roll(llm, PROMPTS, greedy, PROBLEMS[: len(PROMPTS)], step)
        assert report["passes"] < sum(map(len, tokens)), remember
    assert accepted["distributions"] > 1.3 * accepted["tokens"], accepted


def force(llm: Any, texts: dict[str, list[int]], remembered: dict[str, np.ndarray] | None) -> int:
    """Roll out recorded texts, in two halves. Returns the passes of the second."""
    let_force(llm)
    names = list(texts)
    for tick, half in enumerate((names[::2], names[1::2]), 1):
        llm.collective_rpc("das_force", args=({name: texts[name] for name in half}, remembered))
        llm.collective_rpc("das_begin_rollout", args=(len(half),))
        params = [
            SamplingParams(max_tokens=80, stop_token_ids=[END], seed=int(name), extra_args={FORCED_KEY: name})
            for name in half
        ]
        outputs = llm.generate([{"prompt_token_ids": [5, 6, 7]}] * len(half), params, use_tqdm=False)
        (report,) = llm.collective_rpc("das_end_rollout", args=(tick,))
        assert [list(output.outputs[0].token_ids) for output in outputs] == [texts[name] for name in half]
    return int(report["passes"])


def test_recorded_distributions_are_drafted_from_with_their_noise(
    engines: Engines, repetitive_policy: str, tiny_policy: str
) -> None:
    """Another policy emits the text of the one that was recorded. Distributions that are wrong change no token."""
    llm = engines.fresh(repetitive_policy, **SETTINGS)
    shared = {"temperature": 1.0, "max_tokens": 60, "ignore_eos": True, "allowed_token_ids": list(range(5, 250))}
    params = [SamplingParams(**shared, seed=i) for i in range(48)]
    texts, _, report = roll(llm, [[5, 6, 7]] * 48, params, ["p"] * 48, 1)
    recorded = {str(i): [*text, END] for i, text in enumerate(texts)}
    rng, true, wrong = np.random.default_rng(0), {}, {}
    for cost in report["requests"].values():
        name = str(cost["seed"])
        tokens = np.array(recorded[name])
        true[name] = Distributions.from_text(cost["distributions"], len(tokens)).rows(tokens)
        wrong[name] = (rng.integers(0, 250, true[name].shape) << 5 | rng.integers(0, 32, true[name].shape)).astype("u4")
    assert true.keys() == recorded.keys()
    found = [force(engines.fresh(tiny_policy, **SETTINGS), recorded, each) for each in (None, true, wrong)]
    assert found[1] < 0.95 * found[0]
