"""vLLM's own drafters that run a model, with coupled drafts: tokens are those without drafts, whatever is drafted."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Engines, roll
from safetensors.torch import load_file, save_file
from vllm import SamplingParams

from das.general.errors import EngineError
from das.models.coupled import OF_MODELS

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(6, 250, size=size).tolist() for size in (3, 40, 90, 17)]
PROBLEMS = [str(i % 4) for i in range(24)]
KINDS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 1.3},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.0},
    {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.1},
    {"temperature": 1.3, "top_k": 20, "min_tokens": 30},
    {"temperature": 1.0, "allowed_token_ids": list(range(3, 200)), "bad_words": ["a", "add"]},
    {"temperature": 1.0, "seed": None},
]

FEW_BLOCKS = {"block_size": 32, "num_gpu_blocks_override": 10}  # requests are preempted


def parameters() -> list[Any]:
    """Requests of many kinds in one batch. vLLM refuses min_p and logit_bias with its own drafters."""
    common = {"max_tokens": 60, "logprobs": 0}
    kinds = [KINDS[i % len(KINDS)] for i in range(len(PROBLEMS))]
    return [SamplingParams(**{**common, "seed": 1000 + i, "ignore_eos": i % 3 == 0, **kinds[i]}) for i in range(24)]


def rollout(llm: Any) -> Any:
    """Tokens and log-probs, and the report."""
    prompts = [PROMPTS[int(problem)] for problem in PROBLEMS]
    tokens, logprobs, report = roll(llm, prompts, parameters(), PROBLEMS, 1)
    return (tokens, logprobs), report


def ends(llm: Any) -> list[list[int]]:
    """Responses that end inside a draft: at max_tokens, at max_model_len, near which vLLM skips the drafter, at a stop
    token."""
    cases: list[dict[str, Any]] = [{"max_tokens": n} for n in (1, 2, 7, 33)] + [{"max_tokens": 400}] * 2
    cases += [{"max_tokens": 80, "stop_token_ids": list(range(50, 70))}] * 18
    params = [SamplingParams(seed=i, ignore_eos=True, **case) for i, case in enumerate(cases)]
    tokens: list[list[int]] = roll(llm, [PROMPTS[int(problem)] for problem in PROBLEMS], params, PROBLEMS, 1)[0]
    return tokens


def draw_at(llm: Any, scale: float) -> None:
    """Draft at this scale from now on."""

    def use(worker: Any) -> None:
        worker.das_runner.coupled.sampler.scale = scale

    llm.collective_rpc(use)


def load_other_weights(worker: Any) -> None:
    """As a trainer does it: straight into the policy."""
    model = worker.model_runner.get_model()
    generator = torch.Generator().manual_seed(1)
    changed = [
        (name, tensor + 0.1 * torch.randn(tensor.shape, generator=generator) * tensor.std())
        for name, tensor in model.named_parameters()
        if name.endswith(("o_proj.weight", "down_proj.weight"))
    ]
    assert changed
    model.load_weights(changed)


@pytest.fixture(scope="module")
def draft_model(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Another model with the policy's tokenizer: the policy, with noise on its weights."""
    folder = tmp_path_factory.mktemp("draft") / "model"
    shutil.copytree(tiny_policy, folder)
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        weights[name] = tensor + torch.randn(tensor.shape, generator=generator) * 0.05 * tensor.std()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


SCALES = (OF_MODELS, 2.0, 1e6)  # coupled, sharpened, the likeliest token


@pytest.fixture(scope="module")
def undrafted(engines: Engines, tiny_policy: str) -> SimpleNamespace:
    """What an engine without drafts answers: in a rollout for each of SCALES, to `ends`, and with other weights."""
    llm = engines.build(tiny_policy)
    found = SimpleNamespace(rollouts=[rollout(llm)[0] for _ in SCALES], ends=ends(llm))
    llm.collective_rpc(load_other_weights)
    llm.reset_prefix_cache()
    found.other_weights, _ = rollout(llm)
    return found


def speculative(model: str, tokens: int = 4) -> dict[str, Any]:
    return {"method": "draft_model", "speculative": {"model": model, "num_speculative_tokens": tokens}}


def test_the_policy_itself_as_draft_model_is_accepted_but_for_rounding(
    engines: Engines, tiny_policy: str, undrafted: SimpleNamespace
) -> None:
    # So every request's temperature, masks, penalties, seed and position are those that the verifier uses.
    llm = engines.build(tiny_policy, **speculative(tiny_policy))
    emitted, report = rollout(llm)
    assert emitted == undrafted.rollouts[0]
    fewest = sum(1 + math.ceil((len(tokens) - 1) / 5) for tokens in emitted[0])  # the prompt's pass has no drafts
    assert report["passes"] <= fewest + 2


def check(report: dict[str, Any], emitted: Any, scale: float) -> None:
    """Something was drafted; at scale 1, as the draft model is a near copy, most was accepted."""
    assert report["drafted"] > 500
    assert scale != 1.0 or sum(map(len, emitted[0])) > 2 * report["passes"]


def test_drafts_change_nothing(
    engines: Engines, tiny_policy: str, draft_model: str, undrafted: SimpleNamespace
) -> None:
    llm = engines.build(tiny_policy, **speculative(draft_model))
    for scale, expected in zip(SCALES, undrafted.rollouts, strict=True):
        draw_at(llm, scale)
        emitted, report = rollout(llm)
        assert emitted == expected
        check(report, emitted, scale)
    assert ends(llm) == undrafted.ends


def draft_weights(worker: Any) -> float:
    return float(sum(parameter.double().abs().sum() for parameter in worker.model_runner.speculator.model.parameters()))


def test_new_weights_of_the_policy_leave_the_draft_model_as_it_is(
    engines: Engines, tiny_policy: str, draft_model: str, undrafted: SimpleNamespace
) -> None:
    llm = engines.kept(tiny_policy, **speculative(draft_model))
    draw_at(llm, OF_MODELS)
    before = llm.collective_rpc(draft_weights)
    llm.collective_rpc(load_other_weights)
    llm.reset_prefix_cache()
    emitted, report = rollout(llm)
    assert emitted == undrafted.other_weights != undrafted.rollouts[0]
    assert llm.collective_rpc(draft_weights) == before
    assert sum(map(len, emitted[0])) > 1.5 * report["passes"]  # its packed weights are its own, too


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"max_num_batched_tokens": 48}, id="prompts in chunks"),
        pytest.param({"max_num_seqs": 3}, id="few slots", marks=pytest.mark.nightly),
        pytest.param({"extra": FEW_BLOCKS}, id="preempted", marks=pytest.mark.nightly),
        pytest.param(
            {"max_num_batched_tokens": 48, "asynchronous": True}, id="chunks, asynchronous", marks=pytest.mark.nightly
        ),
    ],
)
def test_drafts_change_nothing_under_strain(
    engines: Engines, tiny_policy: str, draft_model: str, undrafted: SimpleNamespace, settings: dict[str, Any]
) -> None:
    emitted, report = rollout(engines.build(tiny_policy, **speculative(draft_model), **settings))
    assert emitted == undrafted.rollouts[0]
    check(report, emitted, OF_MODELS)


def test_a_draft_model_of_another_vocabulary_is_refused(engines: Engines, tiny_policy: str, tmp_path: Path) -> None:
    shutil.copytree(tiny_policy, tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    with pytest.raises(EngineError, match="other knows 7 tokens, the policy"):
        engines.build(tiny_policy, **speculative(str(tmp_path / "other")))
