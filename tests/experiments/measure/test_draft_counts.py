"""Drafts counted without an engine, against one draft after the other."""

import numpy as np
import pytest
import torch

from das.verify.noise import keyed_argmax
from experiments.measure.model_drafters import KINDS, LIKELIEST, Counts, Drafts

VOCABULARY, SEED, SCALE = 5, 7, 2.0


def drawn(logits: torch.Tensor, kind: int, position: int) -> int:
    """The token that one row of logits draws."""
    if kind == LIKELIEST:
        return int(logits.argmax())
    return int(keyed_argmax(logits[None] * SCALE, np.array([SEED]), np.array([position]))[0])


def one_by_one(drafts: Drafts, response: list[int], tokens: int, kind: int) -> list[tuple[int, int, int]]:
    """Of each draft: its position in the response, its right tokens, the tokens to the response's end."""
    counted = []
    for start in range(drafts.first, len(response)):
        right = 0
        while right < tokens and start + right < len(response):
            by_depth, row = drafts.by_depth, start - drafts.first
            logits = by_depth[0][row + right] if len(by_depth) == 1 else by_depth[right][row]
            if drawn(logits, kind, start + right) != response[start + right]:
                break
            right += 1
        counted.append((start, right, len(response) - start))
    return counted


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("alike", [True, False])
def test_counts_are_those_of_single_drafts(first: int, alike: bool) -> None:
    generator = torch.Generator().manual_seed(first)
    tokens, counts = 3, Counts(3)
    reference: dict[int, list[tuple[int, int, int]]] = {kind: [] for kind in KINDS}
    for length in (1, 2, 40, 90):
        places = max(0, length - first)
        by_depth = [torch.randn(max(0, places - j), VOCABULARY, generator=generator) for j in range(tokens)]
        drafts = Drafts(first, by_depth[:1] if alike else by_depth, SCALE)
        response = torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()
        # Half of the text follows the drafter, so that some drafts are right for long.
        response = [int(by_depth[0][i - first].argmax()) if i % 2 and i >= first else t for i, t in enumerate(response)]
        counts.add(drafts, response, SEED)
        for kind in KINDS:
            reference[kind] += one_by_one(drafts, response, tokens, kind)
    for kind in KINDS:
        right, room = np.array([r for _, r, _ in reference[kind]]), np.array([r for _, _, r in reference[kind]])
        assert counts.share(kind) == (right > 0).mean()
        for k in (1, 2, 3):
            assert counts.tokens_per_pass(kind, k) == np.minimum(np.minimum(right, k) + 1, room).mean()
