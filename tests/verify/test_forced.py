"""Forced rollouts draft from recorded distributions. That the recorded tokens come out: tests/identity/."""

from typing import Any

import numpy as np
from conftest import Engines, roll
from vllm import SamplingParams

from das.drafter.distributions import Distributions
from das.engine.patches.front_end import let_force
from das.verify.admission import FORCED_KEY

END = 260  # ends a response


def force(
    llm: Any, responses: dict[str, list[int]], tick: int, remembered: dict[str, np.ndarray] | None = None
) -> tuple[list[list[int]], dict[str, Any]]:
    let_force(llm)
    llm.collective_rpc("das_force", args=(responses, remembered))
    llm.collective_rpc("das_begin_rollout", args=(len(responses) + 1,))
    shared = {"temperature": 1.0, "max_tokens": 80, "stop_token_ids": [END]}
    params = [SamplingParams(**shared, seed=int(name), extra_args={FORCED_KEY: name}) for name in responses]
    params.append(SamplingParams(**shared, seed=99, extra_args={"das_problem": "free"}))
    prompts: Any = [{"prompt_token_ids": [5, 6, 7]}] * len(params)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    report = llm.collective_rpc("das_end_rollout", args=(tick,))[0]
    return [list(output.outputs[0].token_ids) for output in outputs], report


def test_recorded_distributions_are_drafted_from_with_their_noise(
    engines: Engines, repetitive_policy: str, tiny_policy: str
) -> None:
    """Another policy emits the text of the one that was recorded. Distributions that are wrong change no token."""
    settings: dict[str, Any] = {
        "method": "das",
        "drafter": {"remember": "distributions"},
        "budget": {"name": "fixed", "tokens": 8},
    }
    llm = engines.build(repetitive_policy, **settings)
    shared = {"temperature": 1.0, "max_tokens": 60, "ignore_eos": True, "allowed_token_ids": list(range(5, 250))}
    params = [SamplingParams(**shared, seed=i) for i in range(48)]
    texts, _, report = roll(llm, [[5, 6, 7]] * 48, params, ["p"] * 48, 1)
    costs = list(report["requests"].values())
    assert sorted(cost["seed"] for cost in costs) == list(range(48))
    by_seed = {cost["seed"]: cost["distributions"] for cost in costs}
    recorded = {str(i): [*text, END] for i, text in enumerate(texts)}
    rng, true, wrong = np.random.default_rng(0), {}, {}
    for name, tokens in recorded.items():
        true[name] = Distributions.from_text(by_seed[int(name)], len(tokens)).rows(np.array(tokens))
        wrong[name] = (rng.integers(0, 250, true[name].shape) << 5 | rng.integers(0, 32, true[name].shape)).astype("u4")
    halves = [dict(list(recorded.items())[:24]), dict(list(recorded.items())[24:])]
    passes = []
    for remembered in (None, true, wrong):
        llm = engines.fresh(tiny_policy, **settings)
        for tick, half in enumerate(halves, 1):
            responses, report = force(llm, half, tick, remembered)
            assert responses[:24] == list(half.values())
        passes.append(report["passes"])
    assert passes[1] < 0.95 * passes[0]
