"""The weight check's trainer side, without an engine: the sample, the probe's mode and random state, the verdict."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from das import ranks
from das.arrays import save_arrays
from das.errors import EngineError, WeightSyncError
from das.trl import generation
from das.weights.weight_check import WeightSample, check_together, logprob_difference, logprob_problem
from experiments.run.errors import TrainingDiverged
from experiments.training.step_row import require_finite


class Engine:
    """In place of a vllm.LLM: notes the tensors that it is asked about, and answers `lost`."""

    def __init__(self, lost: str = "", cached: int = 0):
        self.lost = lost
        self.asked: list[list[tuple[str, torch.Tensor]]] = []
        blocks = [SimpleNamespace(block_hash=b"1" if index < cached else None) for index in range(9)]
        manager = SimpleNamespace(block_pool=SimpleNamespace(blocks=blocks))
        core = SimpleNamespace(scheduler=SimpleNamespace(kv_cache_manager=manager))
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(engine_core=core))

    def collective_rpc(self, method: str, args: Any) -> list[str]:
        self.asked.append(args[0])
        return [self.lost]


def sync(sample: WeightSample, tensors: list[torch.Tensor]) -> None:
    for _ in sample.watch((f"w{index}", tensor) for index, tensor in enumerate(tensors)):
        pass


@pytest.mark.parametrize(("every", "count"), [(1, 5), (3, 11), (4, 2)])
def test_every_tensor_is_checked_within_so_many_syncs(every: int, count: int) -> None:
    sample, engine = WeightSample(every), Engine()
    for _ in range(3 * every):
        sync(sample, [torch.zeros(1)] * count)
        assert sample.problem(engine) == ""
    asked = [{name for name, _ in tensors} for tensors in engine.asked]
    for first in range(2 * every):
        window = asked[first : first + every]
        assert set.union(*window) == {f"w{index}" for index in range(count)}
        assert sum(len(names) for names in window) == count


@pytest.mark.parametrize(("every", "count"), [(1, 5), (3, 11), (4, 2)])
def test_every_tensor_that_is_loaded_elsewhere_is_checked_too(every: int, count: int) -> None:
    """By name, in the same turns as those of an engine in this process."""
    here, elsewhere, engine = WeightSample(every), WeightSample(every), Engine()
    names = [f"w{index}" for index in range(count)]
    for _ in range(2 * every):
        sync(here, [torch.zeros(1)] * count)
        here.problem(engine)
        assert elsewhere.chosen(names) == [name for name, _ in engine.asked[-1]]


def test_the_sample_is_a_copy() -> None:
    """TRL takes LoRA weights apart while it walks on."""
    sample, engine, weight = WeightSample(1), Engine(), torch.ones(3)
    for _ in sample.watch([("w", nn.Parameter(weight))]):
        pass
    weight.zero_()
    sample.problem(engine)
    ((name, tensor),) = engine.asked[0]
    assert name == "w"
    assert tensor.tolist() == [1, 1, 1]
    assert not tensor.requires_grad


def test_problems_are_told_apart() -> None:
    sample = WeightSample(1)
    sync(sample, [torch.zeros(1)])
    assert sample.problem(Engine("w0 differs in 1 of 1 values")).endswith("engine: w0 differs in 1 of 1 values")
    sync(sample, [torch.zeros(1)])
    assert "prefix cache holds 2 blocks" in sample.problem(Engine(cached=2))
    assert sample.problem(Engine()).endswith("none was loaded")
    assert "disagree on log-probs by nan" in logprob_problem(float("nan"), torch.float32)
    assert logprob_problem(1e-3, torch.float32) == ""


def test_a_count_below_one_is_refused() -> None:
    with pytest.raises(EngineError, match="weight_check_every=0: set it to 1 or more"):
        WeightSample(0)


def test_the_probe_leaves_mode_and_random_state_alone() -> None:
    """With dropout on, trainer and engine would disagree, and the training's next numbers would be others."""

    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(64, 64)
            self.dropout = nn.Dropout(0.5)
            self.frozen = nn.Dropout(0.5).eval()

        def forward(self, input_ids: torch.Tensor) -> Any:
            return SimpleNamespace(logits=self.dropout(self.embed(input_ids)))

    def generate(prompts: Any, params: Any, use_tqdm: bool) -> Any:
        torch.rand(1)  # an engine may draw from torch's generator
        tokens = list(range(params.max_tokens))
        inputs = [*prompts[0]["prompt_token_ids"], *tokens]
        logits = policy.embed(torch.tensor(inputs))[-len(tokens) - 1 : -1].log_softmax(-1)
        logprobs = [{t: SimpleNamespace(logprob=float(row[t]))} for t, row in zip(tokens, logits, strict=True)]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=logprobs)])]

    policy = Policy().train()
    policy.frozen.eval()
    before = torch.get_rng_state()
    assert logprob_difference(policy, generate, seed=0) < 1e-5
    assert torch.equal(torch.get_rng_state(), before)
    assert policy.training
    assert policy.dropout.training
    assert not policy.frozen.training


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
    with pytest.raises(WeightSyncError, match=r"^step 3: lost$"):
        check_together(lambda: "lost", step=3)
    with pytest.raises(TrainingDiverged, match=r"gradient norm nan: the policy is lost; try"):
        require_finite([1.0], [float("nan")], step=3)


def test_checkpoints_that_hold_a_probe_can_still_be_read(tmp_path: Path) -> None:
    """Checkpoints of earlier versions hold the prompt of the next check."""
    state = {"kind": np.array(generation.STATE), "probe": np.arange(5), "rollouts": np.array(7)}
    save_arrays(tmp_path / generation.STATE, state)
    backend: Any = object.__new__(generation.SpeculativeGeneration)
    backend.engines, backend.schedule = SimpleNamespace(load_state=lambda folder: None), None
    backend.head = None
    backend.load_state(tmp_path)
    assert backend.rollouts == 7
