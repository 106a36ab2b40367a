"""Build the small policy that writes programs: the arithmetic policy, trained for another half a minute."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from experiments.cache import cached_folder
from experiments.small_policy import small
from experiments.small_policy.arithmetic import DEFAULT_HABITS, DEFAULT_MIX
from experiments.small_policy.corpus import collate, encode_solutions, make_batches
from experiments.small_policy.programs.task import make_program_problems, worked_program
from experiments.small_policy.small import (
    ARITHMETIC,
    VERSION,
    SmallPolicyConfig,
    build_small_policy,
    policy_key,
    save,
    unpack,
)

_STEPS = 160  # optimizer steps
_TOKENS = 1024  # padded tokens of a step
_RATE = 1e-3  # AdamW's learning rate at the start; it decays linearly to 5 % of this
_TEXTS = _STEPS * _TOKENS // 64  # enough for all steps, as every question with its solution has more than 64 tokens
# The habits of the arithmetic policy, with fewer passes because lines of code are longer.
_HABITS = replace(DEFAULT_HABITS, check_again=0.4, max_passes=5)


KIND = "programs"


def build_programs_policy(
    base: SmallPolicyConfig, cache_dir: Path, progress: Callable[[str], None], effort: float = 1.0
) -> Path:
    """Return the policy's directory, in Hugging Face format. If the cache lacks the policy, it is unpacked there, or
    trained first, from the policy `base`. effort: the share of the optimizer steps; the shipped policy has all."""
    if base == ARITHMETIC and effort == 1:
        return cached_folder(cache_dir / f"{KIND}-{VERSION}", lambda folder: unpack(KIND, folder))
    steps = max(1, round(effort * _STEPS))

    def write(folder: Path) -> None:
        before = build_small_policy(base, cache_dir, progress)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(before)
        model = Qwen3ForCausalLM.from_pretrained(before, dtype=torch.float32)
        _train(model, tokenizer, steps, progress)
        save(model, tokenizer, folder)

    return cached_folder(cache_dir / f"{KIND}-{policy_key(base)}-{steps}", write)


def trained(progress: Callable[[str], None]) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train a new policy, with that of arithmetic before it. Returns it and its tokenizer."""
    model, tokenizer = small.trained(ARITHMETIC, progress)
    _train(model, tokenizer, _STEPS, progress)
    return model, tokenizer


def _train(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, progress: Callable[[str], None]
) -> None:
    """Train the policy of arithmetic further, in place."""
    rng = random.Random("programs")
    problems = make_program_problems(_TEXTS, 0, DEFAULT_MIX)
    pairs = [(problem.question, worked_program(problem, rng, _HABITS)) for problem in problems]
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    model.train()
    batches = make_batches(encode_solutions(pairs, tokenizer), _TOKENS, rng)[:steps]
    for step, batch in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = _RATE * max(0.05, 1 - step / len(batches))
        ids, labels = collate(batch, tokenizer.pad_token_id)
        loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, len(batches) // 4) == 0:
            progress(f"programs policy: step {step} of {len(batches)}, loss {loss.item():.3f}")
    model.eval()
