"""Training a small policy gives reproducible bytes; what ships is what the recipes say."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from experiments.heads.training import generated
from experiments.policies import SHIPPED, train
from experiments.policies.problems import make_problems
from experiments.policies.shapes import Shape
from experiments.policies.train import IGNORED, LONGEST, RECIPES, Recipe
from rewards.maths import accuracy_reward

pytestmark = pytest.mark.slow

KINDS = {"pair": 3, "triple": 3, "walk": 2}


def silent(message: str) -> None:
    """Ignore a progress message."""


def tiny(recipe: Recipe) -> Recipe:
    return replace(
        recipe,
        phases=tuple(replace(phase, steps=2) for phase in recipe.phases),
        shape=Shape(32, 1, 2, 1, 64, 64),
    )


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    train.ship(tiny(RECIPES["puzzles"]), folder, silent)
    return folder


def test_two_trainings_give_the_same_bytes(policy: Path, tmp_path: Path) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state()
    train.ship(tiny(RECIPES["puzzles"]), tmp_path, silent)
    assert digests(tmp_path) == digests(policy)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random state must stay as it was"


def test_the_policy_learns_its_solutions_to_their_end() -> None:
    recipe = RECIPES["programs"]
    tokenizer = train.new_tokenizer(recipe)
    written = recipe.phases[-1].write(0)
    for _ in range(20):
        parts = next(written)
        (example,) = train.encode([parts], tokenizer)
        assert len(example.ids) == len(example.labels) <= LONGEST
        assert example.ids == tokenizer("".join(text for text, _ in parts)).input_ids
        learned = tokenizer.decode([label for label in example.labels if label != IGNORED])
        assert learned.endswith("<|end|>")
        assert learned.count("<|end|>") == 1
        assert "Start with" not in learned


@pytest.mark.parametrize("kind", RECIPES)
def test_what_ships_has_the_sizes_of_its_recipe_and_loads_as_float32(kind: str) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(SHIPPED / kind)
    shipped = load_file(SHIPPED / kind / "model.safetensors")
    made = RECIPES[kind].new_model(tokenizer).state_dict()
    assert {name: made[name].shape for name in shipped} == {name: tensor.shape for name, tensor in shipped.items()}
    assert {tensor.dtype for tensor in shipped.values()} == {torch.bfloat16}
    loaded = AutoModelForCausalLM.from_pretrained(SHIPPED / kind)
    assert loaded.dtype == torch.float32
    assert all(torch.equal(loaded.state_dict()[name], tensor.float()) for name, tensor in shipped.items())


@pytest.mark.nightly
def test_a_policy_trained_anew_solves_puzzles(tmp_path: Path) -> None:
    half = tuple(replace(phase, steps=phase.steps // 2) for phase in RECIPES["puzzles"].phases)
    train.ship(replace(RECIPES["puzzles"], phases=half), tmp_path, silent)
    problems = make_problems("puzzles", 24, 0, KINDS, split="training")
    asked = [problem for problem in problems for _ in range(4)]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], add_generation_prompt=True, return_dict=False
        )
        for problem in asked
    ]
    torch.manual_seed(5)
    responses = generated(model, prompts, 448)
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    rewards = accuracy_reward(texts, [problem.answer for problem in asked])
    assert sum(rewards) / len(rewards) > 0.1
