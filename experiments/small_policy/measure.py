"""Measure a policy by sampling it: its accuracy, the lengths of its responses and the entropy of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from rewards.maths import accuracy_reward

_ROWS_AT_ONCE = 256
# Draws a token for each live response. Arguments: logits [live, vocab], the index of each live response, and the
# position of the token in the responses. Returns tokens [live].
Draw = Callable[[torch.Tensor, Sequence[int], int], torch.Tensor]


@torch.inference_mode()
def sample(
    model: Any, prompts: Sequence[Sequence[int]], max_tokens: int, ends: Sequence[int], draw: Draw
) -> list[list[int]]:
    """Sample a response to each prompt. Returns the token ids.

    A response ends with one of `ends` or has `max_tokens` tokens. All prompts form one batch, padded on the left.
    Finished rows are dropped from the batch from time to time.
    """
    width = max(map(len, prompts))
    inputs, mask = torch.zeros(2, len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        inputs[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache()
    responses: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    ended: set[int] = set()
    for place in range(max_tokens):
        output = model(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        tokens = draw(output.logits[:, -1], live, place)
        for row, token in zip(live, tokens.tolist(), strict=True):
            if row not in ended:
                responses[row].append(token)
                if token in ends:
                    ended.add(row)
        unfinished = [index for index, row in enumerate(live) if row not in ended]
        if not unfinished:
            break
        inputs, mask = tokens[:, None], torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)
        positions = positions[:, -1:] + 1
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

    rows: problems with ``prompt`` (a conversation) and ``answer``, in the form that a run trains on.
    ``rewards``, ``lengths``, ``ids`` and ``texts`` are ordered by problem, then by sample. ``entropy_nats`` is the mean
    over all sampled tokens.
    """
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, trust_remote_code=False).eval()
    generator = torch.Generator().manual_seed(seed)
    row_of_sample = [row for row in rows for _ in range(samples)]
    prompts = [
        tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        for row in row_of_sample
    ]
    ids: list[list[int]] = []
    entropy_sum = 0.0  # nats, over all sampled tokens
    for first in range(0, len(prompts), _ROWS_AT_ONCE):
        batch = prompts[first : first + _ROWS_AT_ONCE]
        entropies: list[list[float]] = [[] for _ in batch]

        def draw(logits: torch.Tensor, live: Sequence[int], place: int, of_row: Any = entropies) -> torch.Tensor:
            log_probs = (logits / temperature).log_softmax(-1)
            probs = log_probs.exp()
            for row, entropy in zip(live, (-probs * log_probs).sum(-1).tolist(), strict=True):
                of_row[row].append(entropy)
            return torch.multinomial(probs, 1, generator=generator)[:, 0]

        responses = sample(model, batch, max_tokens, [tokenizer.eos_token_id], draw)
        entropy_sum += sum(sum(row[: len(own)]) for row, own in zip(entropies, responses, strict=True))
        ids += responses
    texts = [tokenizer.decode(response, skip_special_tokens=True) for response in ids]
    rewards = accuracy_reward(texts, [row["answer"] for row in row_of_sample])
    lengths = [len(response) for response in ids]
    return {
        "responses": len(ids),
        "correct": float(np.mean(rewards)),
        "truncated": float(np.mean([response[-1] != tokenizer.eos_token_id for response in ids])),
        "entropy_nats": entropy_sum / sum(lengths),
        **length_summary(lengths),
        "rewards": rewards,
        "lengths": lengths,
        "ids": ids,
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
