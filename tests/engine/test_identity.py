"""Exactness level 2 in the real engine: token ids and log-probs equal those of the run without drafts, to the last bit.

Bugs made on purpose with which these tests were seen to fail are listed in docs/log.md#faults-made-on-purpose.
"""

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from cases import core_of
from conftest import Engines, roll
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from das.budget import LiveRequest
from das.budget.fixed import Fixed

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(6, 250, size=size).tolist() for size in (3, 40, 90, 17)]
REQUESTS = 24
PROBLEMS = [str(i % 4) for i in range(REQUESTS)]


def parameters() -> list[Any]:
    """Requests of many kinds in one batch."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 20},
        {"temperature": 1.0, "min_p": 0.05},
        {"temperature": 0.0},
        {"temperature": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.1},
        {"temperature": 1.0, "min_tokens": 30, "logit_bias": {7: 2.0, 9: -5.0}},
        {"temperature": 1.0, "logprobs": 5, "allowed_token_ids": list(range(3, 200))},
        {"temperature": 1.0, "bad_words": ["a", "add"]},
        {"temperature": 1.0, "seed": None},
    ]
    all_params = []
    for i in range(REQUESTS):
        common = {"seed": 1000 + i, "max_tokens": 60, "logprobs": 0, "ignore_eos": i % 3 == 0}
        all_params.append(SamplingParams(**{**common, **kinds[i % len(kinds)]}))
    return all_params


def two_rollouts(llm: Any, params: Any = parameters) -> tuple[Any, Any, int]:
    """Roll out the same requests twice. The second time the history holds the same answers, so drafts are accepted.

    Returns (tokens, log-probs) of each rollout, and the number of draft tokens accepted in the second.
    """
    prompts = [PROMPTS[int(problem)] for problem in PROBLEMS]
    first = roll(llm, prompts, params(), PROBLEMS, 1)
    second = roll(llm, prompts, params(), PROBLEMS, 2)
    return first[:2], second[:2], sum(map(len, second[0])) - second[2]["passes"]


@pytest.fixture(scope="module")
def undrafted(engines: Engines, tiny_policy: str) -> Any:
    first, second, num_accepted = two_rollouts(engines.build(tiny_policy))
    assert num_accepted == 0
    return first, second


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": {"name": "fixed", "tokens": 1}},
        {"budget": {"name": "fixed", "tokens": 4}, "max_num_seqs": 3},
        {"budget": {"name": "fixed", "tokens": 16}, "enable_prefix_caching": False},
        {"budget": {"name": "fixed", "tokens": 32}, "max_num_batched_tokens": 48},  # prompts are processed in chunks
        {"budget": {"name": "marginal", "tokens": 32}, "max_num_seqs": 32},
        {
            "budget": {"name": "classes", "short": 0, "medium": 4, "long": 16, "medium_from": 8, "long_from": 30},
        },
    ],
    ids=["k1", "k4_max_num_seqs3", "k16_no_prefix_cache", "k32_chunked", "marginal_max_num_seqs32", "classes"],
)
def test_drafts_change_nothing(
    engines: Engines, tiny_policy: str, undrafted: Any, settings: dict[str, Any], given_prices: str
) -> None:
    if settings["budget"]["name"] == "marginal":
        settings = settings | {"budget": settings["budget"] | {"latency": given_prices}}
    first, second, num_accepted = two_rollouts(engines.build(tiny_policy, method="das", **settings))
    assert num_accepted > 100, "too little was accepted: the test would prove nothing"
    assert first == undrafted[0]
    assert second == undrafted[1]


@pytest.mark.parametrize("name", ["marginal", "fixed", "none", f"{__name__}:NowAndThen"])
def test_asynchronous_scheduling_changes_nothing(engines: Engines, tiny_policy: str, undrafted: Any, name: str) -> None:
    """The scheduler plans the longest draft for every request, and the worker drops the rows that nobody drafted. Where
    the budget rests, a pass begins before the tokens of the one before are known."""
    llm = engines.build(tiny_policy, method="das", max_num_seqs=5, asynchronous=True, budget={"name": name})
    assert type(core_of(llm).scheduler).__name__ == "AsyncScheduler"
    *texts, num_accepted = two_rollouts(llm)
    assert tuple(texts) == undrafted
    assert (num_accepted > 100) or name in ("marginal", "none")
    report = roll(llm, PROMPTS, parameters()[:4], PROBLEMS[:4], 3)[2]
    assert report["undrafted_rows"] > report["decode_steps"] // 2, "planned for drafts that nobody made"


class NowAndThen(Fixed):
    """A budget that drafts in two passes of five, and rests in the others."""

    def __init__(self) -> None:
        super().__init__(8)
        self._passes = 0

    @property
    def rests(self) -> bool:
        return self._passes % 5 > 1

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        rests, self._passes = self.rests, self._passes + 1
        return [0 if rests else self.max_draft_tokens] * len(live)


def test_learned_prices_change_nothing(engines: Engines, tiny_policy: str, undrafted: Any) -> None:
    """How much is drafted depends on the times of passes, so nothing is asserted about it."""
    budget = {"name": "marginal", "tokens": 32, "ratio": 64}
    first, second, _ = two_rollouts(engines.build(tiny_policy, method="das", budget=budget))
    assert (first, second) == undrafted


def test_limits_inside_a_draft(engines: Engines, tiny_policy: str) -> None:
    """A response ends exactly at max_tokens, at max_model_len or at a stop token, also inside an accepted draft."""

    def params() -> list[Any]:
        cases: list[dict[str, Any]] = [{"max_tokens": n} for n in (1, 2, 7, 33)] + [{"max_tokens": 400}] * 2
        cases += [{"max_tokens": 80, "stop_token_ids": list(range(50, 70))}] * 18
        return [SamplingParams(seed=i, ignore_eos=True, **case) for i, case in enumerate(cases)]

    undrafted = two_rollouts(engines.build(tiny_policy, max_model_len=128), params)
    own: dict[str, Any] = {"budget": {"name": "fixed", "tokens": 16}}
    drafted = two_rollouts(engines.build(tiny_policy, method="das", max_model_len=128, **own), params)
    assert drafted[2] > 50
    assert drafted[:2] == undrafted[:2]
    lengths = [len(tokens) for tokens in undrafted[0][0]]
    assert lengths[:4] == [1, 2, 7, 33]
    assert lengths[4] == 128 - len(PROMPTS[0])


def plain_parameters() -> list[Any]:
    """Requests that vLLM's own drafters support."""
    kinds: list[dict[str, Any]] = [{"temperature": t, "ignore_eos": True} for t in (0.0, 0.3, 0.7, 1.0)] * 6
    return [SamplingParams(**{**kind, "seed": i, "max_tokens": 40, "logprobs": 0}) for i, kind in enumerate(kinds)]


def in_its_own_process(policy: str, method: str) -> tuple[Any, Any, int, str, int]:
    """Two rollouts with one of vLLM's drafters, its error message for min_p, and torch's threads afterwards.

    These drafters import numba, after which vLLM 0.32 cannot build another engine in the same process.
    """
    llm = Engines().build(policy, method=method, speculative=SPECULATIVE[method])
    results = two_rollouts(llm, plain_parameters)
    refusal = ""
    try:
        llm.generate([{"prompt_token_ids": PROMPTS[0]}], SamplingParams(min_p=0.1), use_tqdm=False)
    except VLLMValidationError as error:
        refusal = str(error)
    return *results, refusal, torch.get_num_threads()


SPECULATIVE = {
    "ngram": {"num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3},
    "suffix": {"num_speculative_tokens": 8},
}


@pytest.mark.parametrize("method", SPECULATIVE)
def test_vllms_own_drafts_change_nothing_and_keep_their_refusals(
    engines: Engines, tiny_policy: str, method: str
) -> None:
    if method == "suffix":
        pytest.importorskip("arctic_inference")  # `make peers` installs it
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        first, second, num_accepted, refusal, threads = pool.apply(in_its_own_process, (tiny_policy, method))
    undrafted = two_rollouts(engines.build(tiny_policy), plain_parameters)
    assert num_accepted > 20
    assert (first, second) == undrafted[:2]
    assert "min_p" in refusal
    assert threads == 1  # with numba's two, a trainer beside the engine would sum in another order
