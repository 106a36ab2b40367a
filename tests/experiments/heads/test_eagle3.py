"""The EAGLE-3 head: its drafts, loss, files, and the texts it learns. That it changes no bit: test_equal_runs.py."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from das.models.head_files import head_problem, tokenizer_digest
from experiments.digests import weights_digest
from experiments.heads.eagle3 import (
    IGNORED,
    Eagle3Head,
    HeadText,
    HeadTexts,
    new_head,
    shape_for,
)
from experiments.heads.files import load_head, save_head
from experiments.heads.training import HeadLearner, HeadOptions, WarmUp, make_head, texts_of
from experiments.run.errors import TrainingDiverged

PROMPTS = ([5, 6, 7], [8, 9, 10, 11], [12, 13])


@pytest.fixture(scope="module")
def model(repetitive_policy: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(repetitive_policy, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def texts(model: Any) -> list[HeadText]:
    """Greedy responses of the policy, which a head can learn."""
    responses = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        for _ in range(24):
            with torch.no_grad():
                ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
        responses.append(ids[0, len(prompt) :].tolist())
    return texts_of(model, (1,), PROMPTS, responses)


def made(model: Any, seed: int = 0) -> Eagle3Head:
    shape = shape_for(model.config.to_dict())
    return new_head(shape, model.lm_head.weight, model.model.norm.weight, seed)


def embedding_of(model: Any) -> torch.Tensor:
    return model.get_input_embeddings().weight.detach()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("layers", "expected"), [(1, (1,)), (2, (1,)), (4, (1, 2, 3)), (6, (1, 3, 5)), (7, (2, 3, 4)), (36, (2, 18, 33))]
)
def test_auxiliary_layers_differ_and_exist(model: Any, layers: int, expected: Sequence[int]) -> None:
    assert shape_for({**model.config.to_dict(), "num_hidden_layers": layers}).aux_layers == expected


def test_drafts_of_all_places_at_once_are_those_of_one_place(model: Any, texts: list[HeadText]) -> None:
    """What training unrolls for all places is what an engine computes for one, which sees no later token's keys."""
    head, text, embedding = made(model), texts[0], embedding_of(model)
    at_once = list(head.unrolled(text.tokens, text.hidden, embedding, 3))
    assert [len(logits) for logits in at_once] == [len(text.tokens) - 1 - step for step in range(3)]
    for place in (0, 2, 9):
        end = place + 4  # the draft from `place` reads tokens up to place + 1, and its own two
        hidden = text.hidden[:end].clone()
        hidden[place + 1 :] = torch.nan  # of drafted tokens the policy computed nothing yet
        alone = head.unrolled(text.tokens[:end], torch.nan_to_num(hidden, nan=99.0), embedding, 3)
        for step, logits in enumerate(alone):
            torch.testing.assert_close(logits[place], at_once[step][place], rtol=1e-4, atol=1e-4)


def test_a_response_without_room_for_a_draft_has_no_loss(model: Any, texts: list[HeadText]) -> None:
    text = texts[0]
    short = HeadText(text.tokens[:4], text.hidden[:4], text.logits[:1], 3)
    assert made(model).loss(short, embedding_of(model), 3) is None
    assert HeadLearner(made(model), HeadOptions()).learn([short], embedding_of(model)) is None


def test_a_loss_that_is_not_finite_is_an_error(model: Any, texts: list[HeadText]) -> None:
    head = made(model)
    head.fc.weight.data.fill_(torch.nan)
    with pytest.raises(TrainingDiverged, match="loss is nan"):
        HeadLearner(head, HeadOptions()).learn(texts, embedding_of(model))


def test_files_bring_the_head_back(model: Any, repetitive_policy: str, tmp_path: Path) -> None:
    head = made(model, seed=3)
    save_head(head, tmp_path, tokenizer_digest(Path(repetitive_policy)))
    again = load_head(tmp_path)
    assert again.shape == head.shape
    assert weights_digest(again) == weights_digest(head)
    assert head_problem(tmp_path, Path(repetitive_policy)) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 7}, "has vocabulary 7, the policy"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 9]}}, "reads the policy's layers 1, 9, and"),
        ({"eagle_config": {}}, "reads the policy's layers 2, 1, -1, and the policy has 2"),
        ({"das_tokenizer": "0"}, "another tokenizer"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "it holds a Qwen3ForCausalLM, and no EAGLE-3 head"),
        ({"architectures": []}, "config.json is missing or damaged"),
    ],
)
def test_a_head_of_another_policy_is_refused_in_one_line(
    changes: dict[str, Any], words: str, model: Any, repetitive_policy: str, tmp_path: Path
) -> None:
    save_head(made(model), tmp_path, tokenizer_digest(Path(repetitive_policy)))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    problem = head_problem(tmp_path, Path(repetitive_policy))
    assert words in problem
    assert "\n" not in problem


def batch() -> dict[str, torch.Tensor]:
    """Two rows as TRL makes them: prompts padded on the left, responses on the right."""
    ids = torch.tensor([[0, 5, 6, 20, 21, 22], [7, 8, 9, 30, 31, 0]])
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]])
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, :3] = IGNORED
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def test_hooks_copy_what_the_policy_computed(model: Any) -> None:
    texts = HeadTexts(copied := copy.deepcopy(model), (1, 2), share=1.0, seed=0, training_only=False)
    with torch.no_grad():
        copied(**batch())
        alone = model(input_ids=torch.tensor([[7, 8, 9, 30, 31]]), output_hidden_states=True)
    first, second = texts.take()
    assert first.tokens.tolist() == [5, 6, 20, 21, 22]
    assert (first.prompt, second.prompt) == (2, 3)
    hidden = second.hidden[:, : model.config.hidden_size]
    torch.testing.assert_close(hidden, alone.hidden_states[1][0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(second.logits, alone.logits[0, 3:], rtol=1e-4, atol=1e-3)
    assert texts.take() == []


def test_a_head_is_made_on_responses_of_the_policy(repetitive_policy: str) -> None:
    before = torch.get_rng_state()
    warm_up = WarmUp([list(prompt) for prompt in PROMPTS] * 3, 12, 1.0, 2, HeadOptions(depth=2), seed=0)
    head, report = make_head(Path(repetitive_policy), warm_up)
    lines: list[str] = []
    again, _ = make_head(Path(repetitive_policy), warm_up, lines.append)
    count = len(warm_up.prompts)
    assert lines[0] == f"draft head: {count} of {count} responses are sampled"
    assert [line.split(",")[0] for line in lines[-2:]] == ["draft head: epoch 1 of 2", "draft head: epoch 2 of 2"]
    assert weights_digest(head) == weights_digest(again)
    assert torch.equal(before, torch.get_rng_state())
    assert report["responses"] == 7
    assert len(report["losses"]) == 2
    assert report["tokens_per_pass"] >= 1
