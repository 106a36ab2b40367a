"""vLLM's own drafters that run a model, with coupled drafts: tokens are those without drafts, whatever is drafted."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Engines, random_policy, roll
from safetensors.torch import load_file, save_file
from vllm import SamplingParams

from das.engine.build import engine_arguments
from das.errors import EngineError
from das.models.coupled import CoupledSampler

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


def rollout(llm: Any, seeded: bool = False) -> Any:
    """Tokens and log-probs, and the report. seeded: no request is without a seed, so the tokens repeat."""
    params = parameters()
    for i, each in enumerate(params):
        each.seed = i if seeded else each.seed
    tokens, logprobs, report = roll(llm, [PROMPTS[int(problem)] for problem in PROBLEMS], params, PROBLEMS, 1)
    return (tokens, logprobs), report


def use_scale(llm: Any, scale: float) -> None:
    """Draft at this scale, and do not learn another one."""

    def use(worker: Any) -> None:
        worker.das_runner._coupled.sampler = CoupledSampler((scale,))

    llm.collective_rpc(use)


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


@pytest.fixture(scope="module")
def undrafted(engines: Engines, tiny_policy: str) -> Any:
    return rollout(engines.build(tiny_policy))[0]


def speculative(model: str, tokens: int = 4) -> dict[str, Any]:
    return {"method": "draft_model", "speculative": {"model": model, "num_speculative_tokens": tokens}}


def test_the_policy_itself_as_draft_model_is_accepted_but_for_rounding(
    engines: Engines, tiny_policy: str, undrafted: Any
) -> None:
    # So every request's temperature, masks, penalties, seed and position are those that the verifier uses.
    llm = engines.build(tiny_policy, **speculative(tiny_policy))
    use_scale(llm, 1.0)
    emitted, report = rollout(llm)
    assert emitted == undrafted
    fewest = sum(1 + math.ceil((len(tokens) - 1) / 5) for tokens in emitted[0])  # the prompt's pass has no drafts
    assert report["passes"] <= fewest + 2


@pytest.mark.parametrize(
    ("scale", "settings"),
    [
        pytest.param(1.0, {}, id="coupled"),
        pytest.param(3.0, {}, id="sharpened", marks=pytest.mark.slow),
        pytest.param(math.inf, {}, id="argmax"),
        pytest.param(None, {"max_num_batched_tokens": 48}, id="learned, prompts in chunks"),
        pytest.param(None, {"max_num_seqs": 3}, id="learned, few slots", marks=pytest.mark.slow),
        pytest.param(None, {"extra": FEW_BLOCKS}, id="learned, preempted", marks=pytest.mark.slow),
        pytest.param(
            None,
            {"max_num_batched_tokens": 48, "asynchronous": True},
            id="chunks, asynchronous",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_drafts_change_nothing(
    engines: Engines, tiny_policy: str, draft_model: str, undrafted: Any, scale: float | None, settings: dict[str, Any]
) -> None:
    llm = engines.build(tiny_policy, **speculative(draft_model), **settings)
    if scale is not None:
        use_scale(llm, scale)
    emitted, report = rollout(llm)
    assert emitted == undrafted
    tokens = sum(map(len, emitted[0]))
    assert report["drafted"] > 500
    assert report["draft_scale"] == (scale or 1.0)
    assert 0 < report["calibration_error"] < 1
    if scale in (1.0, None):
        assert tokens > 2 * report["passes"]


def test_a_response_ends_inside_a_draft(engines: Engines, tiny_policy: str, draft_model: str) -> None:
    """At max_tokens, at max_model_len, at a stop token. Near max_model_len vLLM skips the drafter."""

    def tokens(**settings: Any) -> Any:
        llm = engines.build(tiny_policy, max_model_len=128, **settings)
        cases: list[dict[str, Any]] = [{"max_tokens": n} for n in (1, 2, 7, 33)] + [{"max_tokens": 400}] * 2
        cases += [{"max_tokens": 80, "stop_token_ids": list(range(50, 70))}] * 18
        params = [SamplingParams(seed=i, ignore_eos=True, **case) for i, case in enumerate(cases)]
        return roll(llm, [PROMPTS[int(problem)] for problem in PROBLEMS], params, PROBLEMS, 1)[0]

    assert tokens(**speculative(draft_model)) == tokens()


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


def draft_weights(worker: Any) -> float:
    return float(sum(parameter.double().abs().sum() for parameter in worker.model_runner.speculator.model.parameters()))


def test_new_weights_of_the_policy_leave_the_draft_model_as_it_is(
    engines: Engines, tiny_policy: str, draft_model: str, undrafted: Any
) -> None:
    plain = engines.build(tiny_policy)
    plain.collective_rpc(load_other_weights)
    expected, _ = rollout(plain)
    llm = engines.build(tiny_policy, **speculative(draft_model))
    rollout(llm)
    before = llm.collective_rpc(draft_weights)
    llm.collective_rpc(load_other_weights)
    llm.reset_prefix_cache()
    emitted, report = rollout(llm)
    assert emitted == expected != undrafted
    assert llm.collective_rpc(draft_weights) == before
    assert sum(map(len, emitted[0])) > 1.5 * report["passes"]  # its packed weights are its own, too


def test_an_evaluation_teaches_nothing_and_a_checkpoint_holds_what_was_learned(
    engines: Engines, tiny_policy: str, draft_model: str, tmp_path: Path
) -> None:
    reports = []
    for evaluated in (False, True):
        llm = engines.build(tiny_policy, **speculative(draft_model))
        rollout(llm, seeded=True)
        if evaluated:
            llm.collective_rpc("das_begin_evaluation")
            assert rollout(llm, seeded=True)[1]["drafted"] > 500
            llm.collective_rpc("das_end_evaluation")
        else:
            llm.collective_rpc("das_save_state", args=(str(tmp_path),))
        reports.append(rollout(llm, seeded=True)[1])
    llm.collective_rpc("das_load_state", args=(str(tmp_path),))
    reports.append(rollout(llm, seeded=True)[1])
    for name in ("passes", "drafted", "draft_scale", "calibration_error"):
        assert len({report[name] for report in reports}) == 1, name


# ---- drafters with heads ----


def random_head(policy: str, folder: Path) -> str:
    """An EAGLE-3 head with random weights for a policy of four layers, in vLLM's own file format."""
    base = json.loads((Path(policy) / "config.json").read_text())
    size, inner, vocab, head = base["hidden_size"], base["intermediate_size"], base["vocab_size"], base["head_dim"]
    queries, keys = head * base["num_attention_heads"], head * base["num_key_value_heads"]
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "midlayer.self_attn.q_proj": (queries, 2 * size),
        "midlayer.self_attn.k_proj": (keys, 2 * size),
        "midlayer.self_attn.v_proj": (keys, 2 * size),
        "midlayer.self_attn.o_proj": (size, queries),
        "midlayer.mlp.gate_proj": (inner, size),
        "midlayer.mlp.up_proj": (inner, size),
        "midlayer.mlp.down_proj": (size, inner),
        "midlayer.input_layernorm": (size,),
        "midlayer.post_attention_layernorm": (size,),
        "midlayer.hidden_norm": (size,),
        "fc": (size, 3 * size),
        "norm": (size,),
        "lm_head": (vocab, size),
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": vocab,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3], "use_aux_hidden_state": True},
        "layer_types": None,
    }
    folder.mkdir()
    config = {**base, "num_hidden_layers": 1, "tie_word_embeddings": False, **config}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {
        f"{name}.weight": torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.05
        for name, shape in shapes.items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(policy) / name, folder)
    return str(folder)


@pytest.mark.slow
def test_heads_draw_coupled_drafts_and_change_nothing(engines: Engines, tmp_path: Path) -> None:
    policy = random_policy(tmp_path / "policy", num_hidden_layers=4)
    expected, _ = rollout(engines.build(policy))
    head = {"method": "eagle3", "model": random_head(policy, tmp_path / "head"), "num_speculative_tokens": 3}
    emitted, report = rollout(engines.build(policy, extra={"speculative_config": head}))
    assert emitted == expected
    assert report["drafted"] > 500
    assert "draft_scale" in report


# ---- what is refused ----


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_speculative_tokens": 4}, "got model=None"),
        ({"model": "nowhere", "num_speculative_tokens": 0}, "num_speculative_tokens=0: a draft model needs"),
        ({"model": "nowhere"}, "num_speculative_tokens=None: a draft model needs"),
        ({"model": "/nowhere", "num_speculative_tokens": 4}, "draft model /nowhere does not exist"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words) as refusal:
        engine_arguments("draft_model", speculative=given)
    assert "\n" not in str(refusal.value)


def test_a_draft_model_of_another_vocabulary_is_refused(engines: Engines, tiny_policy: str, tmp_path: Path) -> None:
    shutil.copytree(tiny_policy, tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    with pytest.raises(EngineError, match="other knows 7 tokens, the policy"):
        engines.build(tiny_policy, **speculative(str(tmp_path / "other")))
