"""Measure a policy by sampling it: its accuracy, the lengths of its responses and the entropy of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedTokenizerFast

from rewards.maths import accuracy_reward

_ROWS_AT_ONCE = 256


@dataclass
class _Response:
    """One sampled response: its token ids with the end token, and the sum of the entropies (nats) of their steps."""

    row: int
    ids: list[int]
    entropy_sum: float = 0.0
    ended: bool = False


@torch.inference_mode()
def _sample(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    temperature: float,
    max_tokens: int,
    generator: torch.Generator,
) -> list[_Response]:
    """Sample one response per prompt. All prompts form one batch, whose finished rows are dropped from time to time."""
    encoded = tokenizer(prompts, padding=True, padding_side="left", return_tensors="pt")
    mask = encoded.attention_mask
    inputs, positions = encoded.input_ids, (mask.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache()
    responses = [_Response(row, []) for row in range(len(prompts))]
    live = responses
    for _ in range(max_tokens):
        output = model(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        log_probs = (output.logits[:, -1] / temperature).log_softmax(-1)
        probs = log_probs.exp()
        entropies = (-probs * log_probs).sum(-1).tolist()
        tokens = torch.multinomial(probs, 1, generator=generator)
        for response, token, entropy in zip(live, tokens[:, 0].tolist(), entropies, strict=True):
            if not response.ended:
                response.ids.append(token)
                response.entropy_sum += entropy
                response.ended = token == tokenizer.eos_token_id
        unfinished = [index for index, response in enumerate(live) if not response.ended]
        if not unfinished:
            break
        mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)
        positions = positions[:, -1:] + 1
        inputs = tokens
        # Dropping rows copies the cache, so rows are dropped only when a fifth of them has ended.
        if len(unfinished) <= 0.8 * len(live):
            index = torch.tensor(unfinished)
            cache.batch_select_indices(index)
            live = [live[i] for i in unfinished]
            inputs, mask, positions = inputs[index], mask[index], positions[index]
    return responses


def measure_policy(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    samples: int = 4,
    temperature: float = 1.0,
    max_tokens: int = 512,
    seed: int = 0,
) -> dict[str, Any]:
    """Sample every problem ``samples`` times. Returns rates, lengths in tokens (with the end token), ids and texts.

    rows: problems as a run trains on them: ``prompt``, a conversation, and ``answer``.
    ``rewards``, ``lengths``, ``ids`` and ``texts`` are ordered by problem, then by sample. ``entropy_nats`` is the mean
    over all sampled tokens.
    """
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    row_of_sample = [row for row in rows for _ in range(samples)]
    prompts = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)
        for row in row_of_sample
    ]
    responses: list[_Response] = []
    for first in range(0, len(prompts), _ROWS_AT_ONCE):
        batch = prompts[first : first + _ROWS_AT_ONCE]
        responses += _sample(model, tokenizer, batch, temperature, max_tokens, generator)
    texts = [tokenizer.decode(response.ids, skip_special_tokens=True) for response in responses]
    rewards = accuracy_reward(texts, [row["answer"] for row in row_of_sample])
    lengths = [len(response.ids) for response in responses]
    return {
        "responses": len(responses),
        "correct": float(np.mean(rewards)),
        "truncated": float(np.mean([not response.ended for response in responses])),
        "entropy_nats": sum(response.entropy_sum for response in responses) / sum(lengths),
        **length_summary(lengths),
        "rewards": rewards,
        "lengths": lengths,
        "ids": [response.ids for response in responses],
        "texts": texts,
    }


def length_summary(lengths: list[int]) -> dict[str, float]:
    """Return mean, median, p90, p99 and maximum in tokens, and the tail ratio p99 / p50."""
    p50, p90, p99 = (float(value) for value in np.percentile(lengths, [50, 90, 99]))
    return {
        "length_mean": float(np.mean(lengths)),
        "length_p50": p50,
        "length_p90": p90,
        "length_p99": p99,
        "length_max": float(max(lengths)),
        "length_tail_ratio": p99 / p50,
    }
