"""Sample responses from a model without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache

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
