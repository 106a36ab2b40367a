"""Stand-ins of the paper's two policies: heads, biases, head sizes, rope and untied embeddings are theirs, and the form
of their chat templates. They have two layers, narrow MLPs and the tiny policy's vocabulary, with random weights.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Engines
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig, Qwen2Config, Qwen3Config

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
ARMS = ("none", "das", "das_self")
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


def responses(llm: Any, tick: int) -> tuple[list[Any], int]:
    """Tokens and log-probs of each response, and the number of accepted drafted tokens."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.8, top_p=0.95, seed=3, n=4, max_tokens=40, logprobs=0, ignore_eos=True)
    chats: list[Any] = [[{"role": "user", "content": question}] for question in QUESTIONS]
    llm.collective_rpc("das_begin_rollout", args=(8,))
    outputs = [each for output in llm.chat(chats, params, use_tqdm=False) for each in output.outputs]
    report = llm.collective_rpc("das_end_rollout", args=(tick,))[0]
    found = [(list(each.token_ids), each.cumulative_logprob) for each in outputs]
    return found, sum(len(tokens) for tokens, _ in found) - report["passes"]


@pytest.mark.parametrize(("config", "chat"), [(R1_DISTILL_QWEN_7B, R1_CHAT), (QWEN3_8B, QWEN_CHAT)], ids=["7b", "8b"])
def test_all_arms_answer_alike(
    config: PretrainedConfig, chat: str, tiny_policy: str, engines: Engines, tmp_path: Path
) -> None:
    write(config, chat, tiny_policy, tmp_path)
    answers = {}
    for arm in ARMS:
        llm = engines.build(str(tmp_path), method=arm)
        answers[arm], _ = responses(llm, 1)
        again, accepted = responses(llm, 2)
        assert again == answers[arm]
        assert (accepted > 0) == (arm != "none")
    assert answers["das"] == answers["none"]
    assert answers["das_self"] == answers["none"]
