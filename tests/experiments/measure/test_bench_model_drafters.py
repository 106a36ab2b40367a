"""task=bench_model_drafters: what it counts."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.heads import training as head_training
from experiments.heads.eagle3 import new_head, places_of, shape_for
from experiments.heads.training import texts_of
from experiments.measure.model_drafters import (
    COPIES,
    Text,
    drafts_of_head,
    drafts_of_model,
    load,
    measured,
    sampled,
    trained_head,
)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_the_policy_drafts_itself_perfectly_and_a_rounded_copy_nearly(tiny_policy: str, temperature: float) -> None:
    policy = load(tiny_policy)
    texts = sampled(policy, [[5, 6, 7], [9]], samples=3, temperature=temperature, max_tokens=60)
    assert all(isinstance(text, Text) and 0 < len(text.response) <= 60 for text in texts)
    models = {"itself": policy, **{n: make(policy) for n, make in COPIES.items()}}
    drafters = {n: drafts_of_model(model) for n, model in models.items()}
    found = measured(policy, drafters, texts, temperature, 7)
    itself = found["itself"]
    assert itself["coupled"] == 1
    assert itself["one_minus_tv"] == pytest.approx(1)
    assert itself["argmax"] < 1
    rooms = [room for text in texts for room in range(1, 1 + len(text.response))]  # tokens to the response's end
    assert itself["tau"]["7"] == pytest.approx(np.minimum(8, rooms).mean())
    assert itself["tau"]["7"] > itself["tau_likeliest"]["7"] > 1
    assert itself["tau"]["7"] > found["w8"]["tau"]["7"] > found["w4"]["tau"]["7"] > 1
    for name in ("w8", "w4"):
        assert abs(found[name]["coupled"] - found[name]["one_minus_tv"]) < 0.1  # some 300 positions
        assert found[name]["coupled"] > found[name]["argmax"]


def test_a_head_is_counted_where_its_training_counts_it(tiny_policy: str, tmp_path: Path) -> None:
    policy = load(tiny_policy)
    lm_head, norm = policy.get_output_embeddings().weight, policy.get_decoder().norm.weight
    head = new_head(shape_for(policy.config.to_dict()), lm_head, norm, seed=0)
    texts = [*sampled(policy, [[5, 6, 7], [9, 8]], 3, 1.0, 40), Text([5, 6], [7], 0)]
    found = measured(policy, {"head": drafts_of_head(policy, head)}, texts, 1.0, 3)["head"]
    read = texts_of(policy, head.shape.aux_layers, [t.prompt for t in texts], [t.response for t in texts])
    right = []
    for text in read:
        first = next(head.unrolled(text.tokens, text.hidden, policy.get_input_embeddings().weight, 1))
        right.append(first[places_of(text, 0)[0]].argmax(-1) == text.tokens[text.prompt + 1 :])
    assert found["argmax"] == pytest.approx(float(torch.cat(right).float().mean()))
    assert 0 < found["one_minus_tv"] < 1
    torch.save({"head": head.state_dict()}, tmp_path / head_training.STATE)
    assert torch.equal(trained_head(tmp_path, policy).fc.weight, head.fc.weight)
