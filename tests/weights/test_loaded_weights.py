"""The weight check's engine side, on real engines: a lost bit is found, and nothing else is."""

from pathlib import Path
from typing import Any

import made_policies
import pytest
import torch
from conftest import Engines
from logprobs import TOLERANCE, logprob_difference
from torch import nn
from transformers import (
    AutoModelForCausalLM,
)

from das.general.errors import NotInstalled

pytestmark = pytest.mark.slow


def engine_model(llm: Any) -> Any:
    return llm.llm_engine.model_executor.driver_worker.model_runner.model


def load(llm: Any, model: nn.Module) -> None:
    """Load weights as TRL does, one by one, and pack them."""
    for name, parameter in model.named_parameters():
        engine_model(llm).load_weights([(name, parameter.data)])
    llm.collective_rpc("das_use_new_weights")


def lost(llm: Any, model: nn.Module, turn: int = 0) -> str:
    tensors = [(name, parameter.data) for name, parameter in model.named_parameters()]
    return str(llm.collective_rpc("das_lost_weights", args=(tensors, turn))[0])


def trained(policy: str, learning_rate: float) -> nn.Module:
    """The policy after one step of Adam."""
    model: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    tokens = torch.arange(8, 72)[None]
    model(input_ids=tokens, labels=tokens).loss.backward()
    torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0).step()
    return model.eval()


@pytest.fixture(scope="module")
def engine(tiny_policy: str, engines: Engines) -> Any:
    """A float32 engine with the weights of `trained(tiny_policy, 0.01)`."""
    return engines.build(tiny_policy)


@pytest.fixture
def model(engine: Any, tiny_policy: str) -> nn.Module:
    """The trainer's model, loaded into `engine`."""
    model = trained(tiny_policy, 0.01)
    load(engine, model)
    assert lost(engine, model) == ""
    return model


def test_any_lost_bit_is_found_and_named(engine: Any, model: nn.Module) -> None:
    held = dict(engine_model(engine).named_parameters())
    places = {
        "model.layers.1.self_attn.v_proj.weight": held["model.layers.1.self_attn.qkv_proj.weight"].data[-1],
        "model.layers.0.mlp.gate_proj.weight": held["model.layers.0.mlp.gate_up_proj.weight"].data[0],
        "model.embed_tokens.weight": held["model.embed_tokens.weight"].data[5],
        "model.norm.weight": held["model.norm.weight"].data,
    }
    for name, row in places.items():
        count = dict(model.named_parameters())[name].numel()
        row.view(torch.int32)[3] ^= 1
        assert lost(engine, model) == f"{name} differs in 1 of {count:,} values"
        assert lost(engine, model) == ""  # the check loaded it


def test_a_packed_copy_that_was_not_made_anew_is_found(engine: Any, model: nn.Module) -> None:
    """The parameters are the new ones, but the CPU computes with what was packed before."""
    for turn, layer in enumerate(("mlp.down_proj", "mlp.up_proj", "self_attn.q_proj")):
        name = f"model.layers.1.{layer}.weight"
        weight = model.get_parameter(name).data
        weight *= 1 + 2**-20
        engine_model(engine).load_weights([(name, weight)])
        assert "computes with an older copy of its weights" in lost(engine, model, turn)
        engine.collective_rpc("das_use_new_weights")
        assert lost(engine, model, turn) == ""


def test_turns_read_all_of_a_packed_copy(engine: Any, model: nn.Module) -> None:
    name = "model.layers.0.mlp.down_proj.weight"  # 96 inputs, so every turn reads half
    model.get_parameter(name).data[:, 7] += 1
    engine_model(engine).load_weights([(name, model.get_parameter(name).data)])
    found = [bool(lost(engine, model, turn)) for turn in range(4)]
    assert found == [False, True, False, True]


def test_a_tensor_without_a_place_is_named(engine: Any) -> None:
    nowhere = ("model.layers.0.rotary_emb.inv_freq", torch.ones(16))  # vLLM skips it in every model
    (found,) = engine.collective_rpc("das_lost_weights", args=([nowhere], 0))
    assert found == f"{nowhere[0]} has no place in it"


def test_a_small_step_in_bfloat16_is_found(tiny_policy: str, engines: Engines) -> None:
    """At learning rate 1e-6 few weights change in bfloat16, and log-probs hardly differ."""
    llm = engines.build(tiny_policy, dtype="bfloat16")
    before, after = trained(tiny_policy, 0.0), trained(tiny_policy, 1e-6)
    load(llm, before)
    assert "differs in" in lost(llm, after)
    load(llm, after)
    assert lost(llm, after) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "Qwen3MoeForCausalLM",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("GptOssForCausalLM", "MixtralForCausalLM")),
    ],
)
def test_experts_arrive_and_are_packed_again(name: str, engines: Engines, tmp_path: Path) -> None:
    made_policies.write(name, tmp_path)
    with pytest.raises(NotInstalled, match="self-drafts: experts cannot be quantized yet"):
        engines.build(str(tmp_path), method="self_draft", budget={"name": "fixed", "tokens": 7})
    llm = engines.build(str(tmp_path))
    model = trained(str(tmp_path), 0.01)
    load(llm, model)
    assert lost(llm, model) == ""
    assert logprob_difference(model, llm.generate) < TOLERANCE
    (experts,) = (
        each for name, each in engine_model(llm).named_modules() if hasattr(each, "das_experts") and ".1." in name
    )
    experts.das_experts._packed[1].view(torch.int32).flatten()[5] ^= 1
    assert "computes with an older copy of its experts" in lost(llm, model)
    llm.collective_rpc("das_use_new_weights")
    experts.w2_weight.data.view(torch.int32).flatten()[5] ^= 1
    assert "differs in 1 of" in lost(llm, model)
