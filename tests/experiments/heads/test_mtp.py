"""An MTP layer in torch: its drafts, its files, and policies that transformers saves without it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import layer_of, mtp_policy
from test_eagle3 import PROMPTS
from transformers import AutoModelForCausalLM

from das.models.head_files import mtp_problem
from experiments.digests import weights_digest
from experiments.heads import mtp
from experiments.heads.texts import HeadText
from experiments.heads.training import HeadLearner, HeadOptions
from experiments.heads.warm_up import texts_of


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(mtp_policy(tmp_path_factory.mktemp("mtp_policy")))


@pytest.fixture(scope="module")
def model(policy: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def texts(model: Any) -> list[HeadText]:
    generator = torch.Generator().manual_seed(0)
    responses = [torch.randint(5, 60, (20,), generator=generator).tolist() for _ in PROMPTS]
    return texts_of(model, (model.config.num_hidden_layers,), PROMPTS, responses)


def test_it_reads_the_hidden_state_before_the_last_norm(model: Any, texts: list[HeadText]) -> None:
    text = texts[0]
    with torch.no_grad():
        logits = model.lm_head(model.model.norm(text.hidden))
    torch.testing.assert_close(logits[text.prompt :], text.logits, rtol=1e-4, atol=1e-4)


def test_drafts_of_all_places_at_once_are_those_of_one_place(policy: Path, model: Any, texts: list[HeadText]) -> None:
    layer, embedding = layer_of(policy), model.get_input_embeddings().weight.detach()
    text = texts[1]
    with torch.no_grad():
        at_once = list(layer.unrolled(text.tokens, text.hidden, embedding, 3))
        for place in (0, 4, 9):
            known = place + 4  # the place's own token, and the three that its drafts follow
            alone = list(layer.unrolled(text.tokens[:known], text.hidden[:known], embedding, 3))
            for step in range(3):
                torch.testing.assert_close(alone[step][place], at_once[step][place], rtol=1e-4, atol=1e-4)


def test_training_lowers_the_loss(policy: Path, model: Any, texts: list[HeadText]) -> None:
    learner = HeadLearner(layer_of(policy), HeadOptions(batch=1))
    losses = learner.warm_up(texts, model.get_input_embeddings().weight.detach(), epochs=10, seed=0)
    assert losses[-1] < 0.7 * losses[0]


def test_what_transformers_saves_gets_its_layer_back(policy: Path, model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    assert not mtp.is_mimo(tmp_path)
    assert mtp_problem(str(tmp_path), 1) == ""  # the config goes on naming a layer that is gone
    mtp.put_back(tmp_path, mtp.mtp_tensors(policy))
    assert mtp.is_mimo(tmp_path)
    assert weights_digest(layer_of(tmp_path)) == weights_digest(layer_of(policy))
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    assert weights_digest(again) == weights_digest(model)


@pytest.mark.parametrize(("tokens", "words"), [(0, "1 to 7 tokens a pass, not 0"), (8, "not 8"), (None, "not None")])
def test_impossible_depths_are_refused(policy: Path, tokens: Any, words: str) -> None:
    assert words in mtp_problem(str(policy), tokens)


def test_policies_without_a_layer_are_refused(policy: Path, tiny_policy: str, tmp_path: Path) -> None:
    assert mtp_problem(str(policy), 3) == mtp_problem("some/hub-id", 3) == ""
    assert "has no MTP layer" in mtp_problem(tiny_policy, 3)
    config = json.loads((policy / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 2}))
    assert "a multiple of the policy's 2 MTP layers" in mtp_problem(str(tmp_path), 3)
