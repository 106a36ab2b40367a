"""Attention over TRL's packed rows, in which samples share their begins, against samples one by one."""

import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from das.errors import EngineError
from das.trl.ahead.tree_attention import tree_sdpa, use_tree_sdpa


def tree_row(seed: int, vocabulary: int) -> tuple[Any, list[list[int]]]:
    """TRL's row of samples that begin alike, some to their middle, and their tokens."""
    from trl.experimental.async_grpo.packing import TreeRow

    rng = random.Random(seed)
    row, samples = TreeRow(), []
    for group in range(3):
        stem = [rng.randrange(vocabulary) for _ in range(rng.randrange(2, 6))]
        for _ in range(rng.randrange(2, 5)):
            tokens = stem + [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 9))]
            samples.append(tokens)
            if rng.random() < 0.5:
                stem = tokens[: rng.randrange(len(stem), len(tokens) + 1)]
            row.add(
                {
                    "input_ids": torch.tensor(tokens),
                    "completion_mask": torch.tensor([0] + [1] * (len(tokens) - 1)),
                    "old_log_probs": torch.zeros(len(tokens)),
                    "advantage": 1.0,
                    "group_id": group,
                }
            )
    return row, samples


@pytest.mark.parametrize("seed", range(4))
def test_a_packed_row_equals_its_samples_alone(tiny_policy: str, seed: int) -> None:
    """Log-probs and their gradient, against a forward pass of each sample with transformers' own attention."""
    model = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    row, samples = tree_row(seed, model.config.vocab_size)
    alone = torch.cat(
        [
            model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
            for ids in map(torch.tensor, samples)
        ]
    )
    factors = torch.randn(len(alone), generator=torch.Generator().manual_seed(seed))
    expected = torch.autograd.grad((alone * factors).sum(), list(model.parameters()))

    packed = row.pack()
    assert len(packed["input_ids"]) < sum(map(len, samples))
    use_tree_sdpa(model)
    tree = {name: packed[name] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    logits = model(input_ids=packed["input_ids"][None], position_ids=packed["position_ids"][None], **tree).logits[0]
    chosen = packed["shift_labels"][packed["token_index"], None]
    together = logits[packed["token_index"]].log_softmax(-1).gather(-1, chosen)[:, 0]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad((together * factors).sum(), list(model.parameters()))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("window", [None, 1, 3])
def test_windows_against_one_query_at_a_time(window: int | None) -> None:
    packed = tree_row(7, 50)[0].pack()
    num_tokens, num_heads, dimension = len(packed["input_ids"]), 4, 8
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, heads, num_tokens, dimension, generator=generator) for heads in (num_heads, 2, 2)
    )
    tree = {name: packed[name] for name in ("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k")}
    module = torch.nn.Sequential(torch.nn.Linear(1, 1))
    module.config = object()  # type: ignore[assignment]
    found, _ = tree_sdpa(module, query, key, value, None, **tree, scaling=0.3, sliding_window=window)
    starts, seen_starts = packed["tree_cu_seqlens_q"].tolist(), packed["tree_cu_seqlens_k"].tolist()
    for segment in range(len(starts) - 1):
        path = packed["tree_kv_index"][seen_starts[segment] : seen_starts[segment + 1]].tolist()
        for place in range(starts[segment], starts[segment + 1]):
            seen = path[: path.index(place) + 1][-(window or num_tokens) :]
            for head in range(num_heads):
                scores = query[0, head, place] @ key[0, head // 2, seen].T * 0.3
                expected = scores.softmax(-1) @ value[0, head // 2, seen]
                torch.testing.assert_close(found[0, place, head], expected)


def test_a_soft_cap_is_refused() -> None:
    nothing = torch.zeros(1)
    tree = dict.fromkeys(("tree_kv_index", "tree_cu_seqlens_q", "tree_cu_seqlens_k"), nothing)
    with pytest.raises(EngineError, match="caps its attention scores"):
        tree_sdpa(None, nothing, nothing, nothing, None, **tree, softcap=1.0)
