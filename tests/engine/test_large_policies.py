"""Stand-ins of the paper's two policies: heads, biases, head sizes, rope and untied embeddings are theirs, and the form
of their chat templates. They have two layers, narrow MLPs and the tiny policy's vocabulary, with random weights.

They go through every kind of engine of configs/arm, but for mtp (they have no such layer), stock (it samples other
tokens) and ngram: its numba keeps vLLM from building another engine in the process.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Engines
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, Qwen2Config, Qwen3Config

from experiments.heads.eagle3 import new_head
from experiments.heads.files import save_head
from experiments.heads.unrolled import shape_for

pytestmark = pytest.mark.slow

COMMON = {
    "num_hidden_layers": 2,
    "intermediate_size": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
R1_DISTILL_QWEN_7B = Qwen2Config(
    **COMMON,
    hidden_size=3584,
    num_attention_heads=28,
    num_key_value_heads=4,
    max_position_embeddings=131072,
    rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
)
QWEN3_8B = Qwen3Config(
    **COMMON,
    hidden_size=4096,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    attention_bias=False,
    max_position_embeddings=40960,
    rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
)
R1_CHAT = "{% for m in messages %}<|User|>{{ m.content }}{% endfor %}<|Assistant|><think>\n"
QWEN_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
SPECULATIVE = {"num_speculative_tokens": 2}
ARMS: dict[str, dict[str, Any]] = {
    "none": {},
    "das": {},
    "das_tree": {"method": "das", "branch_blocks": 64},
    "das_self": {},
    "self_draft": {},
    "suffix": {},
    "draft_model": {"speculative": SPECULATIVE},
    "eagle3": {"speculative": SPECULATIVE},
}
UNTRAINED = ("none", "draft_model", "eagle3")  # nothing right is drafted
QUESTIONS = ("what is 3 + 4?", "what is 12 - 5?")


def write(config: PretrainedConfig, chat: str, tokenizer_of: str, folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_of)
    tokenizer.chat_template = chat
    tokenizer.save_pretrained(folder)
    config.vocab_size = len(tokenizer)
    config.eos_token_id, config.pad_token_id, config.bos_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id, None
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_(0.0, 0.1)
    model.model.norm.weight.data.mul_(3.0)  # sharper: texts repeat themselves
    model.save_pretrained(folder)
    head = new_head(shape_for(config.to_dict()), model.lm_head.weight, model.model.norm.weight, seed=0)
    save_head(head, folder / "head", None)


def responses(llm: Any, tick: int) -> tuple[list[Any], int, int]:
    """Tokens and log-probs of each response, and the numbers of drafted and of accepted tokens."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.8, top_p=0.95, seed=3, n=4, max_tokens=40, logprobs=0, ignore_eos=True)
    chats: list[Any] = [[{"role": "user", "content": question}] for question in QUESTIONS]
    llm.collective_rpc("das_begin_rollout", args=(8,))
    outputs = [each for output in llm.chat(chats, params, use_tqdm=False) for each in output.outputs]
    report = llm.collective_rpc("das_end_rollout", args=(tick,))[0]
    found = [(list(each.token_ids), each.cumulative_logprob) for each in outputs]
    return found, report["drafted"], sum(len(tokens) for tokens, _ in found) - report["passes"]


@pytest.mark.parametrize(
    ("config", "chat"),
    [
        pytest.param(R1_DISTILL_QWEN_7B, R1_CHAT, id="7b"),
        pytest.param(QWEN3_8B, QWEN_CHAT, id="8b", marks=pytest.mark.nightly),
    ],
)
def test_all_arms_answer_alike(
    config: PretrainedConfig, chat: str, tiny_policy: str, engines: Engines, tmp_path: Path
) -> None:
    write(config, chat, tiny_policy, tmp_path)
    models = {"draft_model": tiny_policy, "eagle3": str(tmp_path / "head")}
    expected = None
    for arm, settings in ARMS.items():
        if arm == "suffix" and find_spec("arctic_inference") is None:
            continue
        if "speculative" in settings:
            settings = {"speculative": {**settings["speculative"], "model": models[arm]}}
        llm = engines.build(str(tmp_path), **{"method": arm, **settings})
        for tick in (1, 2):
            found, drafted, accepted = responses(llm, tick)
            expected = expected or found
            assert found == expected, arm
        assert (drafted > 0) == (arm != "none"), arm
        assert accepted > 0 or arm in UNTRAINED, arm
