"""When a training evaluates before its first rollout."""

from types import SimpleNamespace
from typing import Any

import pytest
from trl import GRPOTrainer

from das.trl.lag import StepRollouts
from experiments.training.trainer import SpeculativeGRPOTrainer


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
