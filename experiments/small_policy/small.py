"""Build the small policies: Qwen3s of 1.9 to 3.3 M parameters, trained on worked problems for a few minutes.

Those that a figure needs ship with the repository, in the folder `shipped`, rounded to bfloat16: every machine starts
from the same bits, and a first run trains nothing. `python -m experiments.small_policy KIND` trains one anew (up to 5
minutes on 2 quiet cores) and writes its folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from experiments.cache import cached_folder
from experiments.heads.muon import Muon
from experiments.small_policy.calculator.corpus import CalculatorCorpus
from experiments.small_policy.corpus import CorpusConfig
from experiments.small_policy.puzzles.corpus import PuzzleCorpus

MAX_POSITIONS = 1024
SHIPPED = Path(__file__).with_name("shipped")
# Of the code and texts that make policies, and of the folder `shipped`. Raise it when a policy made anew would differ:
# a cache may hold older ones.
VERSION = 2


@dataclass(frozen=True)
class SmallPolicyConfig:
    """Size, optimizer and data of the small policy. The cache key covers every field."""

    hidden_size: int = 192
    layers: int = 4
    heads: int = 3
    kv_heads: int = 3
    head_dim: int = 64
    intermediate_size: int = 512
    seed: int = 0

    # Muon trains the matrices; AdamW trains the embedding and the norms. AdamW alone needs several times as many tokens
    # before the model copies from its context at all.
    matrix_learning_rate: float = 0.02
    other_learning_rate: float = 3e-3
    warmup_steps: int = 20
    # Factor on the trained logits, applied to the weights of the last norm. A factor above 1 makes improbable tokens
    # rarer. So it removes errors that are due to the short training, but it makes the slips of the habits rarer too.
    logit_scale: float = 1.2
    corpus: PuzzleCorpus | CorpusConfig | CalculatorCorpus = field(default_factory=PuzzleCorpus)


# The policy for data=arithmetic. The policy for data=programs is trained further from this one.
ARITHMETIC = SmallPolicyConfig(
    hidden_size=256, heads=4, kv_heads=2, intermediate_size=768, logit_scale=1.6, corpus=CorpusConfig()
)


CALCULATOR = SmallPolicyConfig(logit_scale=1.25, corpus=CalculatorCorpus())
# The draft model of the policy for puzzles, and of others on the spot: one layer of two heads, where a policy has four
# layers of three or four.
DRAFT_SIZES: dict[str, Any] = {"hidden_size": 128, "layers": 1, "heads": 2, "kv_heads": 2, "intermediate_size": 384}
# Those that ship, beside the policy for programs (programs/policy.py).
KINDS = {
    "puzzles": SmallPolicyConfig(),
    "calculator": CALCULATOR,
    "draft": replace(SmallPolicyConfig(), **DRAFT_SIZES),
}


def policy_key(config: SmallPolicyConfig) -> str:
    """Return the name of the policy's folder in the cache: its kind and version if it ships, or a hash of version and
    configuration. A policy made with another torch has other weights under the same name, so that it can be carried to
    another machine."""
    if kind := shipped_kind(config):
        return f"{kind}-{VERSION}"
    text = json.dumps([VERSION, type(config.corpus).__name__, asdict(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def shipped_kind(config: SmallPolicyConfig) -> str | None:
    """Return the kind of policy that ships with this configuration, or None."""
    return next((kind for kind, shipped in KINDS.items() if shipped == config), None)


def unpack(kind: str, folder: Path) -> None:
    """Write the shipped policy of this kind into `folder`, in float32."""
    shipped = Qwen3ForCausalLM.from_pretrained(SHIPPED / kind, dtype=torch.float32)
    save(shipped, PreTrainedTokenizerFast.from_pretrained(SHIPPED / kind), folder)


def sizes(config: SmallPolicyConfig, tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Return the fields that the Qwen2 config and the Qwen3 config of a small policy have in common."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.intermediate_size,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": True,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _make_optimizers(model: torch.nn.Module, config: SmallPolicyConfig) -> list[torch.optim.Optimizer]:
    named = list(model.named_parameters())
    matrices = [parameter for name, parameter in named if parameter.ndim == 2 and "embed" not in name]
    others = [parameter for name, parameter in named if parameter.ndim != 2 or "embed" in name]
    return [
        Muon(matrices, lr=config.matrix_learning_rate, weight_decay=0.01),
        torch.optim.AdamW(others, lr=config.other_learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def _rate_factor(step: int, config: SmallPolicyConfig) -> float:
    """Return the factor on the learning rates: linear warm-up, then linear decay to 5 %."""
    remaining = 1 - step / config.corpus.steps
    return min(1.0, (step + 1) / config.warmup_steps) * max(0.05, remaining)


def train(
    model: Qwen3ForCausalLM | Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    config: SmallPolicyConfig,
    progress: Callable[[str], None],
) -> None:
    """Train a new model on the corpus, in place; then scale its logits by `config.logit_scale`."""
    optimizers = _make_optimizers(model, config)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_factor(step, config))
        for optimizer in optimizers
    ]
    total = config.corpus.steps
    model.train()
    for step, (ids, labels) in enumerate(config.corpus.batches(config.seed, tokenizer), start=1):
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        if step % max(1, total // 10) == 0:
            progress(f"small policy: step {step} of {total}, loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        model.model.norm.weight.mul_(config.logit_scale)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write the model and its tokenizer into `directory`, in Hugging Face format."""
    # The defaults for sampling change nothing. A default top-k would change the policy in every engine that reads it.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def build_small_policy(config: SmallPolicyConfig, cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """Return the policy's directory, in Hugging Face format. If the cache lacks the policy, it is unpacked there, or
    trained first.

    The same configuration, code, machine and number of threads give the same bytes.
    """

    def write(folder: Path) -> None:
        if kind := shipped_kind(config):
            unpack(kind, folder)
        else:
            save(*trained(config, progress), folder)

    return cached_folder(cache_dir / policy_key(config), write)


def trained(
    config: SmallPolicyConfig, progress: Callable[[str], None]
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train a new policy. Returns it and its tokenizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        tokenizer = config.corpus.tokenizer(config.seed)
        model = Qwen3ForCausalLM(Qwen3Config(**sizes(config, tokenizer), head_dim=config.head_dim))
        train(model, tokenizer, config, progress)
    return model, tokenizer
