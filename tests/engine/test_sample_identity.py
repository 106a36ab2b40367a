"""Exactness level 2 on generated requests: drafts change no token, text, stop reason or log-prob of any request.

The baseline engine lives in a process of its own. Each engine under test answers every batch three times: with an empty
history, with the same answers in its history (long drafts are accepted), and in another order. Every pass gives every
request a random draft limit: 0, 1, 2, 8, 32 or 64 tokens.

Bugs made on purpose with which this test was seen to fail are listed in docs/log.md#faults-made-on-purpose.
"""

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.pool import Pool
from typing import Any

import numpy as np
import pytest
from cases import BATCHES, LIMITS, MAX_MODEL_LEN, PROBLEMS, Case, answers, cases, core_of, das_runner_of
from conftest import Engines
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError

from das.budget import BudgetPolicy
from das.drafter import Drafts
from experiments.digests import digest

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("IDENTITY_EXAMPLES", "12"))  # generated batches an engine; more in `make nightly`
_baselines: dict[str, Any] = {}  # an engine without drafts for each policy


def baseline_answers(policy: str, batch: list[Case]) -> list[Any]:
    """The answers without drafts. Runs in the baseline's process."""
    if policy not in _baselines:
        _baselines[policy] = Engines().build(policy, max_model_len=MAX_MODEL_LEN, max_num_seqs=24)
    return answers(_baselines[policy], batch)[0]


@pytest.fixture(scope="module")
def baseline() -> Iterator[Pool]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


# Together these requests need ten times the KV cache of the smallest engine.
LONG = [Case(i % 4, {"seed": i, "max_tokens": 90, "ignore_eos": True, "logprobs": 1}) for i in range(10)]

# One request of each kind of sampling, and a digest of the tokens that engines answer to all of them. The bits of
# log-probs depend on the processor, so they are only compared; tokens would only if two scores were nearly equal.
KINDS: list[dict[str, Any]] = [
    {"temperature": 0.6},
    {"temperature": 0.0},
    {"temperature": 1.5, "top_k": 10},
    {"top_p": 0.9},
    {"min_p": 0.2},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.7, "presence_penalty": -0.5},
    {"logit_bias": {17: 6.0, 45: -100.0}, "bad_words": ["add", "0 1"]},
    {"allowed_token_ids": list(range(3, 120)), "n": 2},
    {"min_tokens": 9, "stop_token_ids": list(range(30, 100))},
    {"stop": ["e", "\n"]},
    {"regex": "[0-9]{3,40}x"},
    {"ignore_eos": True, "seed": 2**63 + 1},
]
FIXED = [
    Case(i % PROBLEMS, {"temperature": 1.0, "seed": 100 + i, "max_tokens": 40, "logprobs": 0} | kind)
    for i, kind in enumerate(KINDS)
]
STORED = "3c6a35ff8135f3fc"


class RandomLimits(BudgetPolicy):
    """A budget that draws a new limit for every request in every pass."""

    max_draft_tokens = max(LIMITS)

    def __init__(self, allowed: Sequence[int]):
        self.allowed = allowed
        self.random = random.Random(0)

    def limits(self, live: Sequence[Any]) -> list[int]:
        return self.random.choices(self.allowed, k=len(live))

    def trim(self, live: Sequence[Any], drafts: Drafts) -> list[int]:
        return [self.random.randint(count // 2, count) for count in drafts.counts.tolist()]


ENGINES: dict[str, dict[str, Any]] = {
    "max_num_seqs1": {"max_num_seqs": 1, "budget": {"name": "fixed", "tokens": 8}},
    "max_num_seqs3_chunked_prompts": {
        "max_num_seqs": 3,
        "max_num_batched_tokens": 32,
        "budget": {"name": "fixed", "tokens": 64},
    },
    "max_num_seqs16_preempted": {
        "max_num_seqs": 16,
        "budget": {"name": "fixed", "tokens": 32},
        # One long request fits: it needs 6 blocks, and vLLM keeps one block as its null block.
        "extra": {"block_size": 32, "num_gpu_blocks_override": 8},
    },
    "max_num_seqs64_no_prefix_cache": {
        "max_num_seqs": 64,
        "enable_prefix_caching": False,
        "budget": {"name": "fixed", "tokens": 64},
    },
}
ENGINES["asynchronous_preempted"] = {
    **ENGINES["max_num_seqs16_preempted"],
    "asynchronous": True,
}

AT_NIGHT = {"max_num_seqs64_no_prefix_cache"}  # strains the scheduler less than others
# Prompts in chunks, and requests that are preempted.
CHUNKED_PREEMPTED = {
    **ENGINES["max_num_seqs16_preempted"],
    "max_num_batched_tokens": 64,
    "max_model_len": MAX_MODEL_LEN,
}
# The shapes in which requests are stopped amid their drafts: what other drafters are tried with.
STRAINED = ("max_num_seqs3_chunked_prompts", "max_num_seqs16_preempted")


def examples(number: int) -> settings:
    """The same generated batches in every run."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # add Phase.shrink to find a failure's smallest example; it takes minutes
        suppress_health_check=list(HealthCheck),
    )


Turn = Callable[[list[Case], list[Any], random.Random], None]


def check_batches(
    llm: Any, baseline: Pool, policy: str, engine: str, number: int, repeats: int = 1, before: Turn = lambda *_: None
) -> tuple[int, int]:
    """Compare the answers to LONG and to `number` generated batches with those without drafts.

    engine: a name of ENGINES. Each batch comes `repeats` times as it is, and once in another order. before: called
    before each of these turns with the batch, the expected answers and a source of chance. Returns how many draft
    tokens were accepted, and how many batches came in another order.
    """
    preempted = count_calls(core_of(llm).scheduler, "_preempt_request")
    history_tick, num_accepted, num_reordered = 0, 0, 0

    def drafted_equals_undrafted(batch: list[Case], order: random.Random) -> None:
        nonlocal history_tick, num_accepted, num_reordered
        expected = baseline.apply(baseline_answers, (policy, batch))
        shuffled = permuted(batch, order)
        num_reordered += shuffled != list(range(len(batch)))
        history_tick += 3  # the window forgets the example before: examples must not depend on each other
        for permutation in (*[None] * repeats, shuffled):
            before(batch, expected, order)
            responses, num_accepted_here = answers(llm, batch, permutation, history_tick)
            assert responses == expected
            num_accepted += num_accepted_here

    drafted_equals_undrafted(LONG, random.Random(0))

    @examples(number)
    @given(batch=BATCHES, order=st.randoms(use_true_random=False))
    def generated(batch: list[Case], order: random.Random) -> None:
        drafted_equals_undrafted(batch, order)

    generated()
    if "preempted" in engine:
        assert len(preempted) > 20, "the KV cache was large enough: nothing was preempted"
    return num_accepted, num_reordered


@pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=pytest.mark.nightly if name in AT_NIGHT else ()) for name in ENGINES]
)
def test_drafts_change_nothing_in_any_request(engines: Engines, baseline: Pool, tiny_policy: str, engine: str) -> None:
    llm = engines.build(
        tiny_policy,
        method="das",
        max_model_len=MAX_MODEL_LEN,
        drafter={"window": 2, "min_prob": 0.0},
        **ENGINES[engine],
    )
    draft_round = das_runner_of(llm).drafter.draft_round
    draft_round.budget = RandomLimits([limit for limit in LIMITS if limit <= draft_round.max_draft_tokens])
    few = engine.endswith("max_num_seqs1")  # one request at a time takes long
    number = EXAMPLES // 3 if few else EXAMPLES
    num_accepted, num_reordered = check_batches(llm, baseline, tiny_policy, engine, number, repeats=2)
    with pytest.raises(VLLMValidationError, match="ask for logprobs=N"):
        llm.generate([{"prompt_token_ids": [5]}], SamplingParams(logprob_token_ids=[1], logprobs=None), use_tqdm=False)
    assert num_reordered, "no batch came in another order"
    assert num_accepted > 300, "hardly anything was accepted: the test would prove nothing"


@pytest.mark.parametrize("method", ["none", "das"])
def test_chunks_and_preemptions_change_nothing(
    engines: Engines, baseline: Pool, tiny_policy: str, method: str, record_property: Any
) -> None:
    """Tokens, log-probs and stop reasons, with prompts in chunks and with preemptions. `none` answers a batch once,
    `das` twice: the second time the history holds the answers. IDENTITY_EXAMPLES=224 compares 523 requests.
    The tokens that both answer to FIXED are stored.
    """
    llm = engines.build(tiny_policy, method=method, **CHUNKED_PREEMPTED, drafter={"window": 2, "min_prob": 0.0})
    preempted = count_calls(core_of(llm).scheduler, "_preempt_request")
    num_requests = num_accepted = history_tick = 0

    def answer(batch: list[Case]) -> list[Any]:
        nonlocal num_requests, num_accepted, history_tick
        batch = [Case(case.problem, {"logprobs": 0, **case.arguments}) for case in batch]
        for at, case in enumerate(batch):  # seeds are drawn in turn, and it is not known when a grammar is compiled
            if "regex" in case.arguments:
                case.arguments["seed"] = at
        expected = baseline.apply(baseline_answers, (tiny_policy, batch))
        history_tick += 2  # the window forgets the batch before
        for _ in range(2 if method == "das" else 1):
            responses, num_accepted_here = answers(llm, batch, history_tick=history_tick)
            assert responses == expected
            num_accepted += num_accepted_here
        num_requests += len(batch)
        return responses

    @examples(max(EXAMPLES // 6, 1))
    @given(batch=st.lists(cases(), min_size=10, max_size=20))
    def generated(batch: list[Case]) -> None:
        answer(batch)

    answer(LONG)
    generated()
    samples = [sample for samples in answer(FIXED) for sample in samples]
    assert digest(*[np.array(sample["tokens"], np.int64) for sample in samples]) == STORED
    record_property("requests", num_requests)
    assert len(preempted) > 0
    assert num_accepted > 0 or method == "none"


def permuted(batch: list[Case], order: random.Random) -> list[int]:
    """A permutation of the requests that have a seed. A request without one draws it in turn, and keeps its place."""
    seeded = [i for i, case in enumerate(batch) if case.arguments["seed"] is not None]
    places = dict(zip(seeded, order.sample(seeded, len(seeded)), strict=True))
    return [places.get(i, i) for i in range(len(batch))]


def count_calls(owner: Any, name: str) -> list[None]:
    """A list that grows by one entry with every call of owner.name."""
    calls: list[None] = []
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return original(*args, **kwargs)

    setattr(owner, name, counted)
    return calls
