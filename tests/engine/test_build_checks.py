"""What das says before an engine starts, and after a rollout."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from transformers import DeepseekV2Config, PretrainedConfig, Qwen3Config, Qwen3NextConfig

import das
from das.engine import checked_policies, self_test
from das.engine.build import EngineSettings, build_engine
from das.errors import EngineError

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 256,
    "max_position_embeddings": 256,
}
ARMS = ("none", "das", "das_self")
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
REFUSED: list[tuple[str, PretrainedConfig, str]] = [
    (
        "Qwen3NextForCausalLM",
        Qwen3NextConfig(**SIZES, **EXPERTS, head_dim=32, num_experts=4),
        "does not support the linear attention of Qwen3NextForCausalLM: drafts change its tokens; take stock vLLM",
    ),
    (
        "DeepseekV2ForCausalLM",
        DeepseekV2Config(**SIZES, **EXPERTS, n_routed_experts=4, q_lora_rank=None),
        "on a CPU, tokens of DeepseekV2ForCausalLM depend on the batch",
    ),
    (
        "Qwen3ForCausalLM",
        Qwen3Config(**SIZES, head_dim=16),
        "its attention heads have size 16, and vLLM's attention on a CPU knows 32, 64, 80",
    ),
]


def engine(folder: Path) -> Any:
    """Build an engine as scripts do."""
    from vllm import LLM

    das.install()
    arguments = das.engine_arguments(budget={"name": "fixed", "tokens": 4})
    return LLM(str(folder), skip_tokenizer_init=True, max_model_len=128, **arguments)


def server(folder: Path) -> Any:
    """Build an engine as vLLM's servers do."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    das.install()
    arguments = das.engine_arguments(budget={"name": "fixed", "tokens": 4})
    arguments |= {"skip_tokenizer_init": True, "max_model_len": 128}
    return AsyncLLM.from_engine_args(AsyncEngineArgs(str(folder), **arguments))


@pytest.mark.parametrize(("name", "config", "line"), REFUSED)
def test_policies_whose_tokens_drafts_change_are_refused_in_one_line(
    name: str, config: PretrainedConfig, line: str, tmp_path: Path
) -> None:
    """The folder has no weights: the refusal comes before they are read."""
    config.architectures = [name]
    config.save_pretrained(tmp_path)
    harness = partial(build_engine, skip_tokenizer_init=True)
    for build in (engine, server, *(lambda folder, arm=arm: harness(EngineSettings(str(folder), arm)) for arm in ARMS)):
        with pytest.raises(EngineError, match=line) as refused:
            build(tmp_path)
        assert "\n" not in str(refused.value)


def test_a_stock_engine_takes_no_unknown_heads_either(tmp_path: Path) -> None:
    _, config, line = REFUSED[-1]
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    with pytest.raises(EngineError, match=line):
        build_engine(EngineSettings(str(tmp_path), "stock"), skip_tokenizer_init=True)


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ({"differing_requests": 0, "requests": 24, "tokens": 1152, "accepted": 400}, "1152 tokens .* were equal"),
        (None, "could not compare its tokens with and without drafts: the self-check ended with 1: no memory"),
    ],
)
def test_an_unknown_policy_is_compared_once(
    identity: dict[str, Any] | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = []

    def run_apart(policy: Any) -> self_test.Found:
        policies.append(policy["model"])
        return self_test.Found(identity, "ended with 1: no memory")

    monkeypatch.setattr(self_test, "run_apart", run_apart)
    monkeypatch.setattr(checked_policies, "CHECKED", frozenset())
    self_test.make_model(tmp_path)
    with pytest.warns(RuntimeWarning, match=f"das was not checked with Qwen3ForCausalLM, .*{words}"):
        engine(tmp_path).llm_engine.engine_core.shutdown()
    engine(tmp_path).llm_engine.engine_core.shutdown()
    assert policies == [str(tmp_path)]
    checked_policies._compared.clear()
    if identity is not None:
        identity["differing_requests"] = 2
        with pytest.raises(EngineError, match="change tokens or log-probs of Qwen3ForCausalLM in 2 of 24 requests"):
            engine(tmp_path)


def test_a_rollouts_sentence_says_whether_it_went_well() -> None:
    report = {"passes": 1410, "drafted": 80, "accepted": 59}
    sentence = das.rollout_sentence(report)
    assert sentence == ("das: 59 of 80 drafted tokens were accepted (74%); 1410 passes in place of 1469, 4% saved")
    assert "nothing was drafted in 9 passes" in das.rollout_sentence({"passes": 9, "drafted": 0})


def test_a_missing_torchvision_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = "Value error, Model architectures ['X'] failed to be inspected.\n  For further information visit vLLM\n"
    last = self_test.last_line(stderr)
    for torchvision, words in ((None, "need torchvision, in the build that belongs to the torch here"), ("there", "")):
        monkeypatch.setattr(checked_policies, "find_spec", lambda name, found=torchvision: found)
        assert checked_policies.advice(last).endswith(words)
        assert bool(checked_policies.advice(last)) == bool(words)


def test_head_sizes_are_those_of_vllm() -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    assert list(checked_policies.CPU_HEADS) == CPUAttentionBackend.get_supported_head_sizes()
