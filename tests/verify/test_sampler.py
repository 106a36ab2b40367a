"""The sampler against vLLM's own, in cases that generated batches rarely reach."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import MinTokensLogitsProcessor
from vllm.v1.sample.sampler import Sampler

from das.engine.runners.first.runner import FirstRunner
from das.verify.sampler import KeyedSampler
from experiments.harness.plain_batch import plain_runner


@pytest.mark.skipif(
    not hasattr(MinTokensLogitsProcessor, "_mask_stop_token_logits"), reason="up to vLLM 0.27 min_tokens wins"
)
def test_a_grammar_that_leaves_only_a_stop_token_wins_over_min_tokens() -> None:
    # Seen to fail (token 0) when `_min_tokens` does not restore rows whose grammar allows no other token.
    params = SamplingParams(
        temperature=0.0, min_tokens=5, stop_token_ids=[7], structured_outputs=StructuredOutputsParams(regex="a")
    )
    logits = torch.full((1, 20), -math.inf)
    logits[0, 7] = 1.0
    runner: Any = plain_runner([params], 20)
    stock = Sampler("processed_logprobs")(logits.clone(), runner.input_batch.sampling_metadata)
    keyed = KeyedSampler(0, "processed_logprobs").sample(runner, logits.clone(), None)
    assert stock.sampled_token_ids.tolist() == keyed.sampled_token_ids.tolist() == [[7]]


def test_allowed_tokens_of_a_request_that_left_forbid_nothing() -> None:
    # Seen to fail with vLLM 0.24, whose mask still holds the row of the request that moved to the first place.
    params = [SamplingParams(seed=i, allowed_token_ids=[3]) for i in range(3)]
    runner: Any = plain_runner(params, 8)
    batch, sampler = runner.input_batch, KeyedSampler(0, "processed_logprobs")
    logits = torch.zeros(3, 8)
    logits[:, 5] = 50.0
    assert sampler.sample(runner, logits.clone(), None).sampled_token_ids.tolist() == [[3], [3], [3]]
    batch.remove_request("0-plain")
    batch.condense()
    runner.requests["new"] = replace(runner.requests.pop("0-plain"), req_id="new", sampling_params=SamplingParams())
    batch.add_request(runner.requests["new"])
    batch.refresh_metadata()
    emitted = sampler.sample(runner, logits.clone(), None).sampled_token_ids[:, 0].tolist()
    assert dict(zip(batch.req_ids, emitted, strict=True)) == {"1-plain": 3, "2-plain": 3, "new": 5}


def test_log_probs_do_not_depend_on_the_neighbours_top_p() -> None:
    # Seen to fail (-inf beside the neighbour) when a top_p of 1 is passed to vLLM's mask unchanged.
    logits = torch.tensor([[0.0, 0.0, -30.0, -40.0]])
    params = SamplingParams(seed=1, temperature=0.2, logprobs=3)
    alone: Any = plain_runner([params], 4)
    beside: Any = plain_runner([params, SamplingParams(seed=2, temperature=0.2, top_p=0.9, logprobs=3)], 4)
    sampler = KeyedSampler(0, "processed_logprobs")
    single = sampler.sample(alone, logits.clone(), None).logprobs_tensors
    double = KeyedSampler(0, "processed_logprobs").sample(beside, logits.repeat(2, 1), None).logprobs_tensors
    assert single is not None
    assert double is not None
    assert torch.equal(single.logprobs[0], double.logprobs[0])
    assert single.logprobs[0].min() > -math.inf


@pytest.mark.parametrize("count", [1, 6])
def test_equal_top_log_probs_are_listed_by_token_id(count: int) -> None:
    """Where a mask leaves few tokens, most of the listed ones have the log-prob -inf."""
    allowed = [700, 3, 31]
    params = [SamplingParams(seed=i, logprobs=8, allowed_token_ids=allowed) for i in range(count)]
    runner: Any = plain_runner(params, 1000)
    logits = torch.full((count, 1000), 0.5)
    logits[:, 31] = 1.0
    found = KeyedSampler(0, "processed_logprobs").sample(runner, logits, None).logprobs_tensors
    assert found is not None
    assert found.logprob_token_ids[:, 1:].tolist() == [[31, 3, 700, 0, 1, 2, 4, 5]] * count
    assert found.logprobs.isfinite()[:, 1:].sum(dim=1).tolist() == [3] * count


def seeds_of(sampler: KeyedSampler, runner: Any) -> list[int]:
    seeds: list[int] = sampler.seeds.of_batch(runner).tolist()
    return seeds


def test_turns_of_a_session_and_requests_that_reuse_an_id_have_noise_of_their_own() -> None:
    # Seen to fail when the seeds of the batch before were kept for equal ids.
    runner: Any = plain_runner([SamplingParams(seed=5), SamplingParams()], 8)
    sampler = KeyedSampler(0, "processed_logprobs")
    first = seeds_of(sampler, runner)
    assert first[0] == 5
    assert seeds_of(sampler, runner) == first
    for state in runner.requests.values():  # as vLLM does when a streaming session gets further input
        state.sampling_params = state.sampling_params.clone()
    runner.input_batch.sampling_metadata = replace(runner.input_batch.sampling_metadata)
    second = seeds_of(sampler, runner)
    assert len({*first, *second}) == 4
    for name, state in runner.requests.items():
        runner.requests[name] = replace(state, sampling_params=SamplingParams(seed=5))
    runner.input_batch.sampling_metadata = replace(runner.input_batch.sampling_metadata)
    assert seeds_of(sampler, runner) == [5, 5]


def test_engines_of_a_data_parallel_deployment_draw_other_seeds() -> None:
    # vLLM gives each engine of a dense model the rank 0, and tells them apart by the index.
    def runner(index: int) -> Any:
        config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_rank=0, data_parallel_index=index),
            speculative_config=None,
            additional_config={},
        )
        model_config = SimpleNamespace(seed=0, logprobs_mode="processed_logprobs")
        hooks = dict.fromkeys(
            ("_sample", "_bookkeeping_sync", "profile_run", "propose_draft_token_ids", "_input_fits_in_drafter"), id
        )
        return SimpleNamespace(vllm_config=config, model_config=model_config, **hooks)

    runners = [FirstRunner(runner(index)) for index in range(2)]
    assert len({each.sampler.seeds.defaults.draw([1]) for each in runners}) == 2
