"""The harness's trainer: TRL's GRPOTrainer, with less padding, that records exact numbers of every step."""

import functools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from trl import GRPOConfig

from das import ranks
from das.budget.schedule import LongestFirst
from das.cluster.settings import ClusterSettings
from das.digests import digest
from das.engine.build import EngineSettings
from das.engine.rollouts.rollout import Rollout, rollout_row
from das.errors import TrainingDiverged
from das.heads.training import OnlineHead
from das.trl.backend import choose_backend
from das.trl.conversations import follow_turns
from das.trl.generation import SpeculativeGeneration
from das.trl.merge import merged
from das.trl.patches import generation_backend
from experiments.training.lagged_trainer import LaggedGRPOTrainer
from experiments.training.placement import PlacedSampler
from experiments.training.resumable_trainer import Checkpoints
from experiments.training.turns import Turns

RewardFunction = Callable[..., list[float]]
Evaluate = Callable[[SpeculativeGeneration, int], dict[str, Any] | None]


class SpeculativeGRPOTrainer(LaggedGRPOTrainer):
    """GRPO on SpeculativeGeneration, as in `das.speculate()`, with a row of metrics a step, turns and checkpoints.

    Building one leaves TRL as it was.
    """

    brings_backend = True  # das.speculate() leaves it alone

    def __init__(
        self,
        *,
        args: GRPOConfig,
        reward: RewardFunction,
        engine: EngineSettings,
        history_unit: str,
        turns: Turns,
        checkpoints: Checkpoints,
        on_step: Callable[[dict[str, Any], Rollout, list[float]], None],
        schedule: LongestFirst | None = None,
        trim_padding: bool = True,
        lag: int = 0,
        own_process: bool = False,
        evaluate: Evaluate | None = None,
        head: OnlineHead | None = None,
        cluster: ClusterSettings | None = None,
        **kwargs: Any,
    ):
        """history_unit: what the drafter's window counts, "epoch" or "step". schedule: the order in which requests are
        handed to the engine; None keeps TRL's. on_step(row, rollout, rewards) is called on the main rank after every
        step, with what all ranks did. evaluate(generation, step) is called before the first rollout (step 0) and after
        every step; what it returns, unless None, joins the row's `eval`. head: a drafter to train beside the
        policy, with which the engine must draft. trim_padding: leave padding out of forward passes; False computes
        TRL's bits. lag: training steps between the weights that sample and the update that uses the responses.
        own_process: the engine has a process of its own, and rolls out while the policy trains. cluster: engines in
        other processes (das/cluster); None: one engine. kwargs: further arguments of GRPOTrainer.
        """
        self.checkpoints = checkpoints
        self.turns = turns
        self.on_step = on_step
        self.trim_padding = trim_padding
        self.lag, self.ahead, self._submitted = lag, lag > 0 or own_process, deque()
        self.evaluate_policy = evaluate
        self._evaluations: list[dict[str, Any]] = []  # since the last row
        self._reward = reward
        self._rewards: list[float] = []
        self._losses: list[float] = []
        self._began = self._waited = 0.0
        backend = functools.partial(
            choose_backend(cluster, own_process),
            engine=engine,
            history_unit=history_unit,
            schedule=schedule,
            **({} if self.ahead else {"after_rollout": turns.after_rollout}),  # rollouts ahead are not the step's
        )
        with generation_backend(backend, self):
            super().__init__(args=args, reward_funcs=self._scored, **kwargs)
        follow_turns(self)
        if head is not None:
            self.vllm_generation.head = head
            self.add_callback(head)

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> PlacedSampler:
        return PlacedSampler(super()._get_train_sampler(*args, **kwargs), ranks.count())

    def _scored(self, *args: Any, **kwargs: Any) -> list[float]:
        self._rewards = self._reward(*args, **kwargs)
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        # A resumed training is past step 0; step 0 may have several rollouts.
        if self.state.global_step == 0 and not self.vllm_generation.rollouts:
            self._measure_policy()
        self.turns.before_rollout()
        self._began, self._waited, self._exposed_s = time.perf_counter(), self.turns.waited_s, 0.0
        if not (self.ahead and self.model.training):  # rollouts ahead are announced when they are submitted
            self.vllm_generation.announce(self, inputs)
        return super()._generate_and_score_completions(inputs)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self._losses.append(float(loss))
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.state.log_history.clear()  # it would grow without end, in memory and in checkpoints; see metrics.jsonl
        generation = self.vllm_generation
        if "grad_norm" not in logs or (generation.last is None and self._taken is None):
            return  # the summary at the end of training, not a step
        own, own_sync, weights = self._trained_on()
        for cost in own.requests:
            cost["weights"] = weights
        loss = float(np.sum(self._losses))
        self._losses = []
        norm = float(logs["grad_norm"])
        of_ranks = ranks.gather((own, self._rewards, loss, norm, own_sync, self._exposed_s))
        rollouts, rewards_of_ranks, losses, norms, syncs, exposed_s = zip(*of_ranks, strict=True)
        require_finite(losses, norms, self.state.global_step)  # before a checkpoint of this step is written
        if not ranks.is_main():
            return
        rollout = merged(rollouts)
        rewards = [reward for rewards_of_rank in rewards_of_ranks for reward in rewards_of_rank]
        errors = [sync.error for sync in syncs]
        waited = self.turns.waited_s - self._waited
        problems = self.args.generation_batch_size // self.num_generations
        row = {
            "step": self.state.global_step,
            "epoch": rollout.step // max(1, len(self.train_dataset) // problems),
            "reward": float(np.mean(rewards)),
            "loss": float(np.mean(losses)),
            "grad_norm": norm,
            "learning_rate": logs["learning_rate"],
            "kl": logs.get("kl"),
            "entropy": logs.get("entropy"),
            "sampling_logp_difference": logs.get("sampling/sampling_logp_difference/max"),
            "sync_error": None if None in errors else max(errors),
            "sync_s": max(sync.seconds for sync in syncs),
            "check_s": max(sync.check_s for sync in syncs),
            "lag": rollout.step - weights,
            "exposed_s": max(exposed_s),
            "step_s": time.perf_counter() - self._began - waited,
            **rollout_row(rollout),
            **({} if generation.head is None else generation.head.row()),
            "completions_digest": digest(*[np.asarray(response, np.int32) for response in rollout.responses]),
            "rewards_digest": digest(np.asarray(rewards, np.float64)),
        }
        self._measure_policy()
        if self._evaluations:
            row["eval"], self._evaluations = self._evaluations, []
        self.on_step(row, rollout, rewards)

    def _measure_policy(self) -> None:
        evaluate = self.evaluate_policy
        evaluation = None if evaluate is None else evaluate(self.vllm_generation, self.state.global_step)
        if evaluation is not None:
            self._evaluations.append(evaluation)


def require_finite(losses: Sequence[float], norms: Sequence[float], step: int) -> None:
    """Raise TrainingDiverged unless all numbers are finite.

    losses, norms: of every rank, so that all ranks stop together.
    """
    for rank, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        if not np.isfinite([loss, norm]).all():
            where = f" (rank {rank})" if len(losses) > 1 else ""
            raise TrainingDiverged(
                f"step {step}: loss {loss:g}, gradient norm {norm:g}: the policy is lost{where}; try a lower "
                "trainer.learning_rate"
            )
