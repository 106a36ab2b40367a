"""The backend of the arm stock, with an engine that does nothing: which syncs are checked, and when it evaluates."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

from das.trl.engines import in_process
from das.trl.step_rollouts import StepRollouts, Sync
from das.weights.weight_check import WeightSample
from experiments.training import stock as of_stock
from experiments.training.generation import HarnessGeneration
from experiments.training.stock import StockEngine
from experiments.training.trainer import SpeculativeGRPOTrainer


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(VLLMGeneration, "sync_weights", lambda self: None)
    monkeypatch.setattr(of_stock.weights, "repack_linear_layers", lambda model: None)
    monkeypatch.setattr(in_process, "logprob_difference", lambda *args: 0.001)
    backend: Any = HarnessGeneration.__new__(HarnessGeneration)
    runner = SimpleNamespace(model=None)
    executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
    engine = SimpleNamespace(model_executor=executor, model_config=SimpleNamespace(dtype=torch.float32))
    llm = SimpleNamespace(llm_engine=engine)
    engines: Any = StockEngine(llm, None)  # type: ignore[arg-type]
    engines.roll_out = lambda request: (None, None)
    fields: dict[str, Any] = {"llm": llm, "engines": engines, "model": None, "step": 0, "sync": Sync()}
    fields |= {"weight_sample": WeightSample(1), "evaluation_sample": WeightSample(1), "head": None}
    fields |= {"enable_sleep_mode": False, "_logprobs_checked": True}
    vars(backend).update(fields)
    return backend


def test_evaluations_take_no_check_from_the_training(stock: HarnessGeneration) -> None:
    request: Any = SimpleNamespace(step=0)
    found = []
    for _ in range(3):
        stock.evaluate(request)
        stock.sync_weights()
        found.append(stock.sync.error)
    assert found == [0.001, 0.001, None], "the second has the first new weights; the third was not checked"


def test_only_a_training_at_its_beginning_evaluates_before_its_first_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", lambda self, inputs: {})
    evaluated = []
    # (step, rollouts so far): a beginning, the second rollout of step 0, a resumed stock, which counts rollouts anew
    for step, rollouts in ((0, 0), (0, 1), (2, 0)):
        trainer: Any = SpeculativeGRPOTrainer.__new__(SpeculativeGRPOTrainer)
        trainer.state = SimpleNamespace(global_step=step)
        trainer.vllm_generation = SimpleNamespace(rollouts=rollouts, announce=lambda *args: None)
        trainer.barrier = SimpleNamespace(before_rollout=lambda: None, waited_s=0.0)
        trainer._evaluations, trainer.rollouts = [], StepRollouts(trainer)
        trainer.evaluate_policy = lambda generation, step: evaluated.append((step, generation.rollouts))
        trainer._generate_and_score_completions([])
    assert evaluated == [(0, 0)]
