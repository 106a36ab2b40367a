"""Building the small policy gives reproducible bytes, once per configuration, and leaves nothing if interrupted."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from experiments.small_policy.corpus import CorpusConfig
from experiments.small_policy.measure import measure_policy
from experiments.small_policy.puzzles.corpus import PuzzleCorpus
from experiments.small_policy.puzzles.problems import DEFAULT_KINDS, make_puzzles
from experiments.small_policy.small import (
    ARITHMETIC,
    KINDS,
    SHIPPED,
    SmallPolicyConfig,
    build_small_policy,
    policy_key,
    sizes,
    unpack,
)

pytestmark = pytest.mark.slow

TINY = SmallPolicyConfig(
    hidden_size=32,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=16,
    intermediate_size=64,
    corpus=PuzzleCorpus(drill_steps=2, plain_steps=2, habits_steps=2),
)


def silent(message: str) -> None:
    """Ignore a progress message."""


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_policy(TINY, tmp_path_factory.mktemp("cache"), silent)


def test_two_builds_have_the_same_bytes(policy: Path, tmp_path: Path) -> None:
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = build_small_policy(TINY, tmp_path, silent)
    assert digests(again) == digests(policy)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random state must stay as it was"


def test_second_call_builds_nothing(policy: Path) -> None:
    messages: list[str] = []
    assert build_small_policy(TINY, policy.parent, messages.append) == policy
    assert messages == []


def test_every_setting_is_part_of_the_key() -> None:
    others = [replace(TINY, seed=1), replace(TINY, corpus=replace(TINY.corpus, habits_steps=3))]
    assert len({policy_key(config) for config in [TINY, *others]}) == 3


def test_the_policy_of_arithmetic_builds_too(tmp_path: Path) -> None:
    chains = replace(TINY, corpus=CorpusConfig(drill_steps=2, plain_steps=2, habits_steps=2))
    built = build_small_policy(chains, tmp_path, silent)
    assert AutoTokenizer.from_pretrained(built).tokenize("12+3") == ["1", "2", "+", "3"]


def test_a_number_up_to_99_is_one_token(policy: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(policy)
    assert tokenizer.tokenize("12+3=15, 99;100") == ["12", "+", "3", "=", "15", ",Ġ", "99", ";", "10", "0"]


def test_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(message: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_small_policy(TINY, tmp_path, interrupt)
    assert list(tmp_path.iterdir()) == []


def test_saved_policy_is_complete(policy: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy)
    tokenizer = AutoTokenizer.from_pretrained(policy)
    generation = GenerationConfig.from_pretrained(policy)
    assert model.dtype == torch.float32
    assert model.config.model_type == "qwen3"
    assert model.config.max_position_embeddings == 1024
    assert model.config.eos_token_id == generation.eos_token_id == tokenizer.eos_token_id
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_measuring_is_reproducible(policy: Path) -> None:
    problems = make_puzzles(3, 0, DEFAULT_KINDS, split="training")
    rows = [{"prompt": [{"role": "user", "content": p.question}], "answer": p.answer} for p in problems]
    first = measure_policy(policy, rows, samples=2, max_tokens=12, seed=5)
    assert first == measure_policy(policy, rows, samples=2, max_tokens=12, seed=5)
    assert first["responses"] == 6
    assert first["lengths"] == [len(ids) for ids in first["ids"]]
    assert all(1 <= length <= 12 for length in first["lengths"])


def test_a_policy_made_with_another_torch_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name = policy_key(TINY)
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    assert policy_key(TINY) == name


@pytest.mark.parametrize("kind", [*KINDS, "programs"])
def test_what_ships_is_what_its_settings_say(kind: str, tmp_path: Path) -> None:
    config = KINDS.get(kind, ARITHMETIC)  # programs are learned by the policy of arithmetic
    tokenizer = PreTrainedTokenizerFast.from_pretrained(SHIPPED / kind)
    shipped = Qwen3ForCausalLM.from_pretrained(SHIPPED / kind)
    made = Qwen3ForCausalLM(Qwen3Config(**sizes(config, tokenizer), head_dim=config.head_dim))
    assert {name: tensor.shape for name, tensor in shipped.state_dict().items()} == {
        name: tensor.shape for name, tensor in made.state_dict().items()
    }
    unpack(kind, tmp_path)
    unpacked = Qwen3ForCausalLM.from_pretrained(tmp_path)
    assert (shipped.dtype, unpacked.dtype) == (torch.bfloat16, torch.float32)
    assert all(map(torch.equal, unpacked.float().parameters(), shipped.float().parameters()))


@pytest.mark.nightly
def test_a_policy_trained_anew_solves_puzzles(tmp_path: Path) -> None:
    corpus = PuzzleCorpus()
    steps = {name: getattr(corpus, name) // 2 for name in ("drill_steps", "plain_steps", "habits_steps")}
    policy = build_small_policy(SmallPolicyConfig(corpus=replace(corpus, **steps)), tmp_path, silent)
    problems = make_puzzles(24, 0, DEFAULT_KINDS, split="training")
    rows = [{"prompt": [{"role": "user", "content": p.question}], "answer": p.answer} for p in problems]
    assert measure_policy(policy, rows, samples=4, max_tokens=448, seed=5)["correct"] > 0.1
