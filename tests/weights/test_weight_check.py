"""The weight check's trainer side, without an engine: the sample, the verdict, what trainer and engine share."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, Qwen3Config
from trl.generation.vllm_generation import VLLMGeneration

from das.engine.checked_policies import Policy
from das.general import ranks
from das.general.errors import EngineError, WeightSyncError
from das.trl.support import CURE, OWN_HEAD, dtype_note, embedding_problem
from das.weights.weight_check import WeightSample, check_together, fingerprint, problem_of
from experiments.run.errors import TrainingDiverged
from experiments.training.trainer import require_finite

ENGINE = Policy("float32", tied=True, room=256, keeps_bits=True)


def names_of(sample: WeightSample, count: int) -> list[str]:
    """Returns the names of the sample of a sync that loads so many tensors."""
    for _ in sample.watch((f"w{index}", torch.zeros(1)) for index in range(count)):
        pass
    return [name for name, _ in sample.take()]


@pytest.mark.parametrize(("every", "count"), [(3, 11), (4, 2)])
def test_every_tensor_is_checked_within_so_many_syncs(every: int, count: int) -> None:
    """And by name, where they are loaded elsewhere, in the same turns."""
    sample, elsewhere, names = WeightSample(every), WeightSample(every), [f"w{index}" for index in range(count)]
    asked = [names_of(sample, count) for _ in range(3 * every)]
    assert asked == [elsewhere.chosen(names) for _ in asked]
    for first in range(2 * every):
        assert sorted(name for sync in asked[first : first + every] for name in sync) == sorted(names)


def test_a_sync_that_begins_anew_counts_its_tensors_once() -> None:
    """TRL walks through the tensors twice before the first sync of a server."""
    sample = WeightSample(2)
    for _ in sample.watch([("w0", torch.zeros(1))] * 3):
        pass
    sample.restart()
    assert names_of(sample, 4) == ["w0", "w2"]


def test_the_sample_is_a_copy() -> None:
    """TRL takes LoRA weights apart while it walks on."""
    sample, weight = WeightSample(1), torch.ones(3)
    for _ in sample.watch([("w", nn.Parameter(weight))]):
        pass
    weight.zero_()
    ((name, tensor),) = sample.take()
    assert name == "w"
    assert tensor.tolist() == [1, 1, 1]
    assert not tensor.requires_grad


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(EngineError, match="weight_check_every=0: set it to 1 or more"):
        WeightSample(0)


FEW = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8}


def policy(tied: bool, **lora: Any) -> Any:
    """A tiny policy; with arguments of PEFT's LoraConfig, wrapped."""
    config = Qwen3Config(vocab_size=40, num_key_value_heads=1, tie_word_embeddings=tied, **FEW)
    model = AutoModelForCausalLM.from_config(config)
    return get_peft_model(model, LoraConfig(r=2, **lora)) if lora else model


def differs_from_the_engines(model: Any) -> bool:
    """Whether a training step would give the trainer another embedding or lm_head than an engine with tied weights,
    which takes both from the embedding that TRL loads."""
    backend: Any = object.__new__(VLLMGeneration)
    backend.model = model.eval()
    backend._dist = SimpleNamespace(gather_params=lambda parameters: nullcontext(), is_fsdp=False)
    hidden = torch.randn(5, 16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
        embedded = model.get_input_embeddings()(torch.arange(40))
        logits = model.get_output_embeddings()(hidden)
        sent = {name: tensor.clone() for name, tensor in backend._iter_named_params()}
    weight = sent.get("model.embed_tokens.weight", torch.zeros(40, 16))
    return not (torch.allclose(embedded, weight, atol=1e-4) and torch.allclose(logits, hidden @ weight.T, atol=1e-4))


@pytest.mark.parametrize("ensured", [False, True])
@pytest.mark.parametrize(
    "trained",
    [
        {"target_modules": ["q_proj"]},
        *({"target_modules": ["q_proj"], "modules_to_save": names} for names in (["embed_tokens"], ["lm_head"])),
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
        *({"target_modules": names} for names in (["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"])),
        {"target_modules": ["q_proj"], "trainable_token_indices": [3, 5]},
    ],
    ids=lambda trained: " ".join(f"{name}={value}" for name, value in trained.items()),
)
@pytest.mark.filterwarnings("ignore")
def test_every_way_in_which_peft_trains_tied_weights(trained: dict[str, Any], ensured: bool) -> None:
    """Refused are those, and no others, with which the engine would soon compute something else."""
    model = policy(True, ensure_weight_tying=ensured, **copy.deepcopy(trained))
    problem = embedding_problem(model, ENGINE)
    assert bool(problem) == differs_from_the_engines(model)
    assert not problem or problem.endswith(f": {CURE}")


@pytest.mark.parametrize("lora", [{}, {"target_modules": ["lm_head"]}, {"modules_to_save": ["lm_head"]}])
def test_tied_here_and_untied_there(lora: dict[str, Any]) -> None:
    untied = replace(ENGINE, tied=False)
    assert embedding_problem(policy(False, **lora), untied) == ""
    assert "the trainer's would differ" in embedding_problem(policy(False, **lora), ENGINE)
    assert embedding_problem(policy(True), untied) == OWN_HEAD


@pytest.mark.parametrize(("autocast", "said"), [("no", False), ("bf16", True), ("fp16", True)])
def test_another_type_of_the_trainer_is_said(autocast: str, said: bool) -> None:
    note = dtype_note(autocast, ENGINE)
    assert bool(note) == said
    assert not note or f"set {autocast}=False" in note
    assert dtype_note("bf16", replace(ENGINE, dtype="bfloat16")) == ""


def test_any_bit_makes_another_fingerprint() -> None:
    tensors = [torch.randn(5, 7), torch.randn(3, dtype=torch.bfloat16), torch.arange(9)[1:], torch.zeros(0)]
    before = fingerprint(tensors)
    assert fingerprint([tensor.clone() for tensor in tensors]) == before
    for tensor in tensors[:3]:
        bits = tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])
        for place in range(bits.numel()):
            bits.view(-1)[place] ^= 1 << 3
            assert fingerprint(tensors) != before
            bits.view(-1)[place] ^= 1 << 3
    assert fingerprint(tensors) == before


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """This is rank 0 of two; the list is what rank 1 says."""
    other = [""]
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "gather", lambda own: [own, *other])
    return other


def test_one_ranks_problem_is_everyones(two_ranks: list[str]) -> None:
    check_together(lambda: "", step=3)
    two_ranks[0] = "lost"
    with pytest.raises(WeightSyncError, match=r"^step 3: lost \(rank 1\)$"):
        check_together(lambda: "", step=3)
    with pytest.raises(TrainingDiverged, match=r"^step 3: loss inf, gradient norm 1: the policy is lost \(rank 1\);"):
        require_finite([1.0, float("inf")], [1.0, 1.0], step=3)


def test_a_problem_of_a_single_process_names_no_rank() -> None:
    assert problem_of(["", ""]) == ""
    with pytest.raises(WeightSyncError, match=r"^step 3: .* prefix cache holds 2 blocks"):
        check_together(lambda: problem_of([""], cached_blocks=2), step=3)
    with pytest.raises(WeightSyncError, match=r"^step 3: .* none was loaded$"):
        check_together(lambda: problem_of([str(WeightSample(1).take())]), step=3)
    with pytest.raises(TrainingDiverged, match=r"gradient norm nan: the policy is lost; try"):
        require_finite([1.0], [float("nan")], step=3)
