"""TRL's GRPOTrainer, unchanged in what it computes: it tells the engine the problem ids and notes exact numbers."""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from trl import GRPOConfig

from das.budget.schedule import LongestFirst
from das.engine import patches
from das.engine.build import EngineSettings
from das.engine.rollout import Rollout, rollout_row
from das.training import ranks
from das.training.digests import digest
from das.training.errors import TrainingDiverged
from das.training.generation import SpeculativeGeneration
from das.training.merge import merged
from das.training.placement import PlacedSampler
from das.training.resumable_trainer import Checkpoints, ResumableGRPOTrainer
from das.training.turns import Turns

RewardFunction = Callable[..., list[float]]


class SpeculativeGRPOTrainer(ResumableGRPOTrainer):
    """GRPO whose rollouts may be speculative. Rows of the dataset need a `problem_id`."""

    def __init__(
        self,
        *args: Any,
        engine: EngineSettings,
        turns: Turns,
        clock: Callable[[int], int],
        on_step: Callable[[dict[str, Any], Rollout, list[float]], None],
        args_: GRPOConfig,
        reward: RewardFunction,
        checkpoints: Checkpoints,
        schedule: LongestFirst | None = None,
        **kwargs: Any,
    ):
        """clock: training step -> the drafter's clock. on_step(row, rollout, rewards) is called after every step, with
        what all ranks did, on the main one. schedule: in which order requests get slots, where slots are few."""
        self.checkpoints = checkpoints
        self.turns = turns
        self.on_step = on_step
        self._reward = reward
        self._rewards: list[float] = []
        self._losses: list[float] = []
        self._began = self._waited = 0.0
        patches.use_generation_backend(
            functools.partial(
                SpeculativeGeneration,
                engine=engine,
                run_seed=args_.seed,
                clock=clock,
                after_rollout=turns.after_rollout,
                schedule=schedule,
            )
        )
        super().__init__(*args, args=args_, reward_funcs=self._scored, **kwargs)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> PlacedSampler:
        return PlacedSampler(super()._get_train_sampler(*args, **kwargs), ranks.count())

    def _scored(self, *args: Any, **kwargs: Any) -> list[float]:
        self._rewards = self._reward(*args, **kwargs)
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.turns.before_rollout()
        self._began, self._waited = time.perf_counter(), self.turns.waited_s
        generation = self.vllm_generation
        generation.step = self.state.global_step
        generation.evaluation = not self.model.training
        generation.problems = [str(row["problem_id"]) for row in inputs]
        return super()._generate_and_score_completions(inputs)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self._losses.append(float(loss))
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.state.log_history.clear()  # would grow for ever, in memory and in checkpoints; metrics.jsonl has it all
        generation = self.vllm_generation
        if "grad_norm" not in logs or generation.last is None:
            return  # the summary at the end of training, not a step
        mine = (generation.last, self._rewards, float(np.sum(self._losses)), generation.sync_error, generation.sync_s)
        self._losses = []
        if not np.isfinite([mine[2], logs["grad_norm"]]).all():  # before a checkpoint of it is written
            raise TrainingDiverged(
                f"step {self.state.global_step}: loss {mine[2]:g}, gradient norm {logs['grad_norm']:g}: the policy is "
                "lost; try a lower trainer.learning_rate"
            )
        rollouts, scores, losses, sync_errors, sync_s = zip(*ranks.gather(mine), strict=True)
        if not ranks.is_main():
            return
        rollout, rewards = merged(rollouts), [reward for own in scores for reward in own]
        waited = self.turns.waited_s - self._waited
        problems = self.args.generation_batch_size // self.num_generations
        row = {
            "step": self.state.global_step,
            "epoch": rollout.step // max(1, len(self.train_dataset) // problems),
            "reward": float(np.mean(rewards)),
            "loss": float(np.mean(losses)),
            "grad_norm": float(logs["grad_norm"]),
            "learning_rate": logs["learning_rate"],
            "kl": logs.get("kl"),
            "entropy": logs.get("entropy"),
            "sampling_logp_difference": logs.get("sampling/sampling_logp_difference/max"),
            "sync_error": max(sync_errors),
            "sync_s": max(sync_s),
            "step_s": time.perf_counter() - self._began - waited,
            **rollout_row(rollout),
            "completions_digest": digest(*[np.asarray(response, np.int32) for response in rollout.responses]),
            "rewards_digest": digest(np.asarray(rewards, np.float64)),
        }
        self.on_step(row, rollout, rewards)
