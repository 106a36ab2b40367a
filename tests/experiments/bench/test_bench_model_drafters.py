"""task=bench_model_drafters: what it counts."""

import numpy as np
import pytest
import torch

from experiments.bench.model_drafters import COPIES, Text, load, measured, sampled, tokens_per_pass


def test_tokens_per_pass_by_hand() -> None:
    hits = np.array([True, False, True, True])
    # Drafts of 2 that begin at 0: 1 accepted and 1 more; at 1: none and 1 more; at 2: both, and the text ends; at 3: 1.
    assert tokens_per_pass(hits, 2) == (2 + 1 + 2 + 1) / 4
    assert tokens_per_pass(np.zeros(5, bool), 7) == 1


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_the_policy_drafts_itself_perfectly_and_a_rounded_copy_nearly(tiny_policy: str, temperature: float) -> None:
    policy = load(tiny_policy)
    texts = sampled(policy, [[5, 6, 7], [9]], samples=3, temperature=temperature, max_tokens=60)
    assert all(isinstance(text, Text) and 0 < len(text.response) <= 60 for text in texts)
    found = measured(
        policy, {"itself": policy, **{n: make(policy) for n, make in COPIES.items()}}, texts, temperature, 7
    )
    itself = found["itself"]
    assert itself["coupled"] == 1
    assert itself["one_minus_tv"] == pytest.approx(1)
    assert itself["argmax"] < 1
    assert itself["tau_coupled"] > found["w8"]["tau_coupled"] > found["w4"]["tau_coupled"] > 1
    for name in ("w8", "w4"):
        assert abs(found[name]["coupled"] - found[name]["one_minus_tv"]) < 0.1  # some 300 positions
        assert found[name]["coupled"] > found[name]["argmax"]


def test_a_response_is_what_its_seed_says_whoever_is_beside_it(tiny_policy: str) -> None:
    policy = load(tiny_policy)
    with torch.inference_mode():
        alone = sampled(policy, [[5, 6, 7]], 1, 1.0, 40)[0]
        beside = sampled(policy, [[5, 6, 7], [9, 9, 9, 9, 9]], 1, 1.0, 40)[0]
    assert alone == beside
