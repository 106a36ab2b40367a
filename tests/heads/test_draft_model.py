"""A draft model that learns beside the policy: its loss, what it trains, and a resumed run."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import random_policy
from test_eagle3 import PROMPTS, batch
from transformers import AutoModelForCausalLM

from das.heads.draft_model import DraftModel, load_draft_model
from das.heads.trained_drafter import HeadText
from das.heads.training import HeadLearner, HeadOptions, OnlineHead
from das.heads.warm_up import texts_of


@pytest.fixture(scope="module")
def model(repetitive_policy: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(repetitive_policy, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def texts(model: Any) -> list[HeadText]:
    generator = torch.Generator().manual_seed(0)
    responses = [torch.randint(5, 60, (20,), generator=generator).tolist() for _ in PROMPTS]
    return texts_of(model, (), PROMPTS, responses)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_policy(tmp_path_factory.mktemp("draft"), num_hidden_layers=1, hidden_size=32)


def test_the_loss_is_that_of_each_place_alone(model: Any, texts: list[HeadText], folder: str) -> None:
    drafter = load_draft_model(folder)
    for text in texts:
        kls = []
        for known in range(text.prompt + 1, len(text.tokens)):  # tokens known when the next one is drafted
            with torch.no_grad():
                of_policy = model(input_ids=text.tokens[None, :known]).logits[0, -1].log_softmax(-1)
                of_draft = drafter.model(input_ids=text.tokens[None, :known]).logits[0, -1].log_softmax(-1)
            kls.append(float((of_policy.exp() * (of_policy - of_draft)).sum()))
        assert float(drafter.loss(text, torch.empty(0), 1)) == pytest.approx(sum(kls) / len(kls), rel=1e-3)  # type: ignore[arg-type]


def test_a_perfect_drafter_has_no_loss(model: Any, texts: list[HeadText]) -> None:
    assert abs(float(DraftModel(copy.deepcopy(model)).loss(texts[0], torch.empty(0), 1))) < 1e-4  # type: ignore[arg-type]


def test_training_lowers_the_loss(texts: list[HeadText], folder: str) -> None:
    losses = HeadLearner(load_draft_model(folder), HeadOptions(batch=1)).warm_up(texts, torch.empty(0), 8, seed=0)
    assert losses[-1] < 0.5 * losses[0]


def test_a_response_of_one_token_has_no_loss(texts: list[HeadText], folder: str) -> None:
    text = texts[0]
    short = HeadText(text.tokens[: text.prompt + 1], text.hidden[: text.prompt + 1], text.logits[:1], text.prompt)
    assert load_draft_model(folder).loss(short, torch.empty(0), 1) is None


def test_muon_trains_the_matrices_of_layers_and_each_weight_has_one_name(folder: str) -> None:
    before = torch.get_rng_state()
    drafter = load_draft_model(folder)
    assert torch.equal(before, torch.get_rng_state())
    names = dict(drafter.tensors())
    assert "lm_head.weight" not in names  # it is the embedding
    assert names["model.embed_tokens.weight"].dtype == torch.float32
    matrices = {id(matrix) for matrix in drafter.matrices()}
    chosen = {name for name, value in drafter.model.named_parameters() if id(value) in matrices}
    assert chosen == {name for name in names if name.endswith("proj.weight")}


def test_training_beside_the_policy_resumes_bit_for_bit(model: Any, folder: str, tmp_path: Path) -> None:
    def online() -> OnlineHead:
        policy = copy.deepcopy(model).train()
        return OnlineHead(load_draft_model(folder), HeadOptions(batch=1), policy, share=1.0, seed=0)

    def step(drafter: OnlineHead, number: int) -> None:
        class State:
            global_step = number

        drafter.on_step_begin(None, State, None)
        drafter._model(**batch()).loss.backward()
        drafter.on_step_end(None, State, None)

    whole, first = online(), online()
    for number in range(3):
        step(whole, number)
    step(first, 0)
    first.save(tmp_path)
    second = online()
    second.load(tmp_path)
    assert second.digest() == first.digest() != online().digest()
    for number in range(1, 3):
        step(second, number)
    assert second.digest() == whole.digest()
    assert whole.row()["head_texts"] == 2
