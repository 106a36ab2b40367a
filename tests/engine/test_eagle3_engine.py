"""The EAGLE-3 head in the engine: vLLM drafts what the head in torch drafts, and no token changes."""

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from cases import das_runner_of
from conftest import Engines, roll
from vllm import SamplingParams

from das.engine.patches import weights
from das.general.errors import EngineError
from das.models.head_files import tokenizer_digest
from experiments.heads.eagle3 import Eagle3Head, HeadText, new_head, shape_for, tokens_per_pass
from experiments.heads.files import load_head, save_head
from experiments.heads.training import HeadLearner, HeadOptions, WarmUp, make_head, texts_of

pytestmark = pytest.mark.slow

PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [20, 21, 22, 23, 24], [7, 7, 7]]
PROBLEMS = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def head_folder(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    head, _ = make_head(Path(repetitive_policy), WarmUp(PROMPTS * 6, 60, 1.0, 10, HeadOptions(batch=1), seed=0))
    folder = tmp_path_factory.mktemp("head")
    save_head(head, folder, tokenizer_digest(Path(repetitive_policy)))
    return folder


@pytest.fixture(scope="module")
def model(repetitive_policy: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(repetitive_policy, dtype=torch.float32).eval()


def rollout(llm: Any, evaluation: bool = False) -> tuple[list[list[int]], float]:
    """The responses, and their tokens per pass."""
    params = [SamplingParams(temperature=1.0, max_tokens=60, seed=index, detokenize=False) for index in range(4)]
    tokens, _, report = roll(llm, PROMPTS, params, PROBLEMS, 1, evaluation)
    return tokens, sum(map(len, tokens)) / report["passes"]


def draft_likeliest_tokens(llm: Any) -> None:
    """Let the engine draft what `tokens_per_pass` counts, in place of coupled drafts."""
    das_runner_of(llm).coupled.sampler.scale = 1e6


def offline(head: Eagle3Head, texts: list[HeadText], model: Any, depth: int) -> float:
    return tokens_per_pass(head, texts, model.get_input_embeddings().weight.detach(), depth)


def test_the_engine_drafts_what_the_head_drafts(
    repetitive_policy: str,
    head_folder: Path,
    model: Any,
    engines: Engines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, _ = rollout(engines.build(repetitive_policy))
    head = load_head(head_folder)
    texts = texts_of(model, head.shape.aux_layers, PROMPTS, expected)
    for depth in (1, 3):
        spec = {"model": str(head_folder), "num_speculative_tokens": depth}
        llm = engines.build(repetitive_policy, method="eagle3", speculative=spec)
        tokens, _ = rollout(llm)
        assert tokens == expected
        llm.reset_prefix_cache()
        draft_likeliest_tokens(llm)
        tokens, per_pass = rollout(llm)
        assert tokens == expected
        assert per_pass == pytest.approx(offline(head, texts, model, depth), rel=0.01)
        assert per_pass > 1.05
    # A head that has learned on is loaded into the running engine.
    embedding = model.get_input_embeddings().weight.detach()
    HeadLearner(head, HeadOptions(batch=1)).warm_up(texts, embedding, epochs=4, seed=0)
    tensors = [(name, value.detach()) for name, value in head.named_parameters()]
    llm.reset_prefix_cache()
    assert llm.collective_rpc("das_load_head", args=(tensors,)) == [""]
    tokens, later = rollout(llm)
    assert tokens == expected
    assert later == pytest.approx(offline(head, texts, model, 3), rel=0.01)
    assert later > per_pass
    assert rollout(llm, evaluation=True) == (expected, later), "the head drafts on in an evaluation"
    monkeypatch.setattr(weights, "repack_linear_layers", lambda model: None)
    (stale,) = llm.collective_rpc("das_load_head", args=([(name, value * 2) for name, value in tensors],))
    assert "computes with an older copy of its weights" in stale


def test_an_lm_head_that_vllm_shares_is_not_written_to(
    repetitive_policy: str, model: Any, engines: Engines, tmp_path: Path
) -> None:
    """vLLM lets a head with the policy's lm_head share it; new weights of the head would go into the policy."""
    shape = shape_for(model.config.to_dict())
    head = new_head(shape, model.lm_head.weight, model.model.norm.weight, seed=0)
    save_head(head, tmp_path, None)
    spec = {"model": str(tmp_path), "num_speculative_tokens": 1}
    llm = engines.build(repetitive_policy, method="eagle3", speculative=spec)
    tensors = [(name, value.detach()) for name, value in head.named_parameters()]
    (problem,) = llm.collective_rpc("das_load_head", args=(tensors,))
    assert "vLLM shares them" in problem


def test_the_worker_refuses_the_head_and_the_draft_model_of_another_policy(
    repetitive_policy: str, model: Any, engines: Engines, tmp_path: Path
) -> None:
    shape = shape_for(model.config.to_dict())
    save_head(new_head(shape, model.lm_head.weight, model.model.norm.weight, seed=0), tmp_path, "another")
    spec = {"model": str(tmp_path), "num_speculative_tokens": 1}
    with pytest.raises(EngineError, match="trained with another tokenizer"):
        engines.build(repetitive_policy, method="eagle3", speculative=spec)
    other = copytree(repetitive_policy, tmp_path / "other") / "config.json"
    other.write_text(json.dumps({**json.loads(other.read_text()), "vocab_size": 7}))
    with pytest.raises(
        EngineError, match=r"same vocabulary size. Target model vocab_size=\d+. Draft model vocab_size=7"
    ):
        engines.build(repetitive_policy, method="draft_model", speculative={**spec, "model": str(other.parent)})
