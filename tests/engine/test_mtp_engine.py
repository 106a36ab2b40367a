"""MTP layers in the engine: vLLM drafts what the layer in torch drafts, and no token changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Engines, layer_of, mtp_policy
from test_eagle3_engine import PROMPTS, draft_likeliest_tokens, offline, rollout
from transformers import AutoModelForCausalLM

from experiments.heads import files
from experiments.heads.training import HeadLearner, HeadOptions, texts_of

pytestmark = pytest.mark.nightly


def test_the_engine_drafts_what_the_layer_drafts(engines: Engines, tmp_path: Path) -> None:
    policy = Path(mtp_policy(tmp_path))
    model: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    embedding = model.get_input_embeddings().weight.detach()
    expected, _ = rollout(engines.build(str(policy)))
    texts = texts_of(model, (model.config.num_hidden_layers,), PROMPTS, expected)
    layer = layer_of(policy)
    HeadLearner(layer, HeadOptions(batch=1)).warm_up(texts, embedding, epochs=10, seed=0)
    files.put_back(policy, layer.tensors())  # so that the layer knows something
    for depth in (1, 3):
        llm = engines.build(str(policy), method="mtp", speculative={"num_speculative_tokens": depth})
        assert rollout(llm)[0] == expected  # coupled
        llm.reset_prefix_cache()
        draft_likeliest_tokens(llm)
        tokens, per_pass = rollout(llm)
        assert tokens == expected
        assert per_pass == pytest.approx(offline(layer, texts, model, depth), rel=0.01)
        assert per_pass > 1.1
