"""Requests that are put aside and begin anew under other weights get the tokens of a rollout that never drafts."""

from typing import Any

import pytest
from conftest import Engines
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from das.verify.admission import PROBLEM_KEY, SET_ASIDE_KEY

REQUESTS = 8
LENGTH = 64
POINTS = (0, 1, 2, 7, 8, 9, 31, LENGTH - 1, LENGTH)  # before, at and behind the ends of drafts of 8 tokens


def rolled(llm: Any, tick: int, set_aside: list[list[int]] | None = None, max_tokens: int = LENGTH) -> Any:
    """(tokens, log-probs of the sampled tokens, report) of the same requests, with the tokens set aside of each."""
    params = [
        SamplingParams(
            temperature=0.7, seed=i, max_tokens=max_tokens, ignore_eos=i % 2 == 0, logprobs=0,
            extra_args={PROBLEM_KEY: str(i), SET_ASIDE_KEY: [] if set_aside is None else set_aside[i]},
        )
        for i in range(REQUESTS)
    ]  # fmt: skip
    llm.collective_rpc("das_begin_rollout", args=(REQUESTS,))
    prompts = [{"prompt_token_ids": [5, 9 + i // 4, 7]} for i in range(REQUESTS)]
    outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    report = llm.collective_rpc("das_end_rollout", args=(tick,))[0]
    logprobs = [
        [entry[token].logprob for token, entry in zip(out.token_ids, out.logprobs, strict=True)] for out in outputs
    ]
    return [list(out.token_ids) for out in outputs], logprobs, report


def train(llm: Any, by: float) -> None:
    """Load weights that differ: the last norm's, by this factor."""
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    norm = dict(model.named_parameters())["model.norm.weight"]
    model.load_weights([("model.norm.weight", norm * by)])


@pytest.fixture(scope="module")
def undrafted(engines: Engines, tiny_policy: str) -> Any:
    """Rollouts of none: under the old weights, and under the new ones."""
    llm = engines.build(tiny_policy)
    old = rolled(llm, 1)
    train(llm, 1.02)
    return old, rolled(llm, 2)


@pytest.mark.parametrize("settings", [{}, {"drafter": {"remember": "tokens"}}])
def test_any_interruption_point(settings: dict[str, Any], undrafted: Any, engines: Engines, tiny_policy: str) -> None:
    (old, _, _), (new, new_logprobs, none_report) = undrafted
    assert old != new
    assert any(a[:9] == b[:9] for a, b in zip(old, new, strict=True))
    history = {
        "window": 0,
        "cross_problem_tokens": 0,
        **settings.pop("drafter", {}),
    }  # drafts hardly come from elsewhere
    llm = engines.build(tiny_policy, method="das", drafter=history, **settings)
    assert rolled(llm, 1, max_tokens=POINTS[-2])[0] == [tokens[: POINTS[-2]] for tokens in old]
    train(llm, 1.02)
    passes = []
    for tick, point in enumerate(POINTS, 2):
        tokens, logprobs, report = rolled(llm, tick, [tokens[:point] for tokens in old])
        assert tokens == new
        assert logprobs == new_logprobs
        passes.append(report["passes"])
    assert passes[-1] < 0.9 * passes[0]
    assert passes[0] <= none_report["passes"]


def test_tokens_of_another_response_or_of_no_policy(undrafted: Any, engines: Engines, tiny_policy: str) -> None:
    (old, _, _), _ = undrafted
    llm = engines.build(tiny_policy, method="das")
    wrong = [old[-1], [2**31 - 1], [*old[2][:5], 10**6], [0] * 500, *old[4:]]
    tokens, _, _ = rolled(llm, 1, wrong)
    assert tokens == old


@pytest.mark.parametrize("given", ["abc", [1.5], [-1], [2**31], [True], 3])
def test_refused(given: Any, engines: Engines, tiny_policy: str) -> None:
    llm = engines.llm or engines.build(tiny_policy)
    with pytest.raises(VLLMValidationError, match="das_set_aside must be a list of token ids"):
        llm.generate([{"prompt_token_ids": [5]}], SamplingParams(extra_args={SET_ASIDE_KEY: given}), use_tqdm=False)
