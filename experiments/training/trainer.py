"""The experiments' trainer: TRL's GRPOTrainer with speculative rollouts, less padding, metrics and checkpoints."""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trl import GRPOConfig, GRPOTrainer

from das.engine.rollouts.report import merged as merged_reports
from das.engine.rollouts.rollout import Rollout
from das.general import ranks
from das.trl.lag import RolloutsAhead, Rows, StepRollouts, Sync
from das.trl.resume import checkpoints_accepted, complete, completed_epochs, repeat_draws
from das.trl.trainers import generation_backend
from experiments.digests import digest, of_all_ranks, optimizer_digest, weights_digest
from experiments.heads.files import is_mimo, mtp_tensors, put_back
from experiments.heads.training import OnlineHead
from experiments.run import run_folder
from experiments.run.errors import TrainingDiverged
from experiments.run.progress import Barrier
from experiments.run.run_folder import rollout_row
from experiments.training import checkpoint
from experiments.training.checkpoint import Checkpoints
from experiments.training.generation import HarnessGeneration
from experiments.training.trimmed import without_padding

# ---- columns of a step's row ----


def logged_by_trl(logs: Mapping[str, float]) -> dict[str, Any]:
    """Return the columns that come from TRL's own logs."""
    return {
        "learning_rate": logs["learning_rate"],
        "kl": logs.get("kl"),
        "entropy": logs.get("entropy"),
        "sampling_logp_difference": logs.get("sampling/sampling_logp_difference/max"),
    }


def of_syncs(syncs: Sequence[Sync]) -> dict[str, Any]:
    """Return the columns about the weight sync: how the engine got the new weights. syncs: one entry for each rank."""
    return {
        "sync_s": max(sync.seconds for sync in syncs),
        "check_s": max(sync.check_s for sync in syncs),
        "exchange_s": max(sync.exchange_s for sync in syncs),
        "exchange_bytes": sum(sync.exchange_bytes for sync in syncs),
    }


def of_rollout(rollout: Rollout, rewards: Sequence[float | None]) -> dict[str, Any]:
    """Return the columns about the rollout and its rewards. rewards: one for each response; None: it has none."""
    given = [reward for reward in rewards if reward is not None]
    return {
        "reward": float(np.mean(given)) if given else None,
        **rollout_row(rollout),
        "completions_digest": digest(*[np.asarray(response, np.int32) for response in rollout.responses]),
        "rewards_digest": digest(np.asarray(rewards, np.float64)),  # NaN for None
    }


def require_finite(losses: Sequence[float], norms: Sequence[float], step: int) -> None:
    """Raise TrainingDiverged unless all numbers are finite.

    losses, norms (of gradients): one number for each rank, so that all ranks stop together.
    """
    for rank, (loss, norm) in enumerate(zip(losses, norms, strict=True)):
        if not np.isfinite([loss, norm]).all():
            where = f" (rank {rank})" if len(losses) > 1 else ""
            raise TrainingDiverged(
                f"step {step}: loss {loss:g}, gradient norm {norm:g}: the policy is lost{where}; try a lower "
                "trainer.learning_rate"
            )


def merged(rollouts: Sequence[Rollout]) -> Rollout:
    """Merge the ranks' rollouts into the rollout of the step. rollouts: one of each rank, in rank order.

    rollout_s, draft_s and the timeline of passes are those of the slowest rank, because the others wait for it. The
    calibration error is the largest of all ranks, and the alarms of all ranks are kept. Responses are listed in rank
    order, and each names its `rank`. A single rollout is returned as it is.
    """
    if len(rollouts) == 1:
        return rollouts[0]
    ranks = {f"rank {rank}": rollout for rank, rollout in enumerate(rollouts)}
    slowest = max(ranks, key=lambda rank: ranks[rank].rollout_s)
    report = merged_reports({rank: rollout.report for rank, rollout in ranks.items()}, slowest)
    return Rollout(
        step=ranks[slowest].step,
        finished=[replace(each, rank=rank) for rank, rollout in enumerate(rollouts) for each in rollout.finished],
        rollout_s=ranks[slowest].rollout_s,
        report=report,
    )


ENTROPY_OPTIONS = ("compute_entropy", "compute_aux_loss")  # of TRL's forward pass; its other options carry images
RewardFunction = Callable[..., Sequence[float | None]]
Evaluate = Callable[[HarnessGeneration, int], dict[str, Any] | None]


class SpeculativeGRPOTrainer(GRPOTrainer):
    """GRPO whose rollouts are speculative, as with `das.speculate()`. Each step makes a row of metrics.

    In a step TRL calls `_generate_and_score_completions`, which calls `_generate`, which calls `_generate_single_turn`,
    and the reward; then `training_step` for each micro-batch; then `log`; and every `args.save_steps` steps
    `_save_checkpoint`. TRL itself is patched only while the trainer is built.
    """

    brings_backend = True  # tells das.speculate() not to change this trainer
    trains = True
    vllm_generation: HarnessGeneration
    _last_loaded_step: int  # TRL's: the step at which the engine got its weights

    def __init__(
        self,
        *,
        args: GRPOConfig,
        reward: RewardFunction,
        backend: Callable[..., HarnessGeneration],
        barrier: Barrier,
        checkpoints: Checkpoints,
        on_step: Callable[[dict[str, Any], Rollout, list[float | None]], None],
        trim_padding: bool,
        ahead: int | None,
        evaluate: Evaluate | None,
        head: OnlineHead | None,
        **kwargs: Any,
    ):
        """Build the trainer and its engine. backend: makes TRL's generation backend. barrier: where the arms of a
        comparison wait for each other. on_step(row, rollout, rewards) is called on the main rank after every step, with
        the results of all ranks. trim_padding: leave padding out of forward passes; False gives the same bits as TRL.
        ahead: training steps between the weights that sample and the update that uses the responses, if the engine
        rolls out while the policy trains; None: it does not. evaluate(generation, step) is called before the first
        rollout (step 0) and after every step; its result, unless None, is added to the row's `eval`. head: the drafter
        that is trained beside the policy; the engine must draft with it. kwargs: further arguments of GRPOTrainer."""
        self.barrier = barrier
        self.on_step = on_step
        self.trim_padding = trim_padding
        self.rollouts = StepRollouts(self) if ahead is None else RolloutsAhead(self, ahead)
        self.evaluate_policy = evaluate
        self.checkpoints = checkpoints
        self._evaluations: list[dict[str, Any]] = []  # evaluations since the last row
        self._reward = reward
        self.rewards: list[float | None] = []  # of the responses that were judged last
        self._losses: list[float] = []
        self._began = self._waited = self._exposed_s = 0.0  # perf_counter() at the start of this step; seconds
        with generation_backend(backend, self), checkpoints_accepted(args, kwargs["model"]):
            super().__init__(args=args, reward_funcs=self._scored, **kwargs)
        complete(self)
        self.head = head
        if head is not None:
            self.vllm_generation.head = head
            self.add_callback(head)

    def resume(self, step: int) -> None:
        """Continue training from the checkpoint of `step`, which must have been verified."""
        folder = checkpoint.step_folder(self.checkpoints.folder, step)
        own = run_folder.own_folder(folder)
        self.rollouts.resume(own, step)
        # On the trainer, not on its class: `indexes_of_steps` begins with the first epoch (das/trl/lag.py).
        self._get_train_sampler = functools.partial(self._sampler_after, completed_epochs(folder))
        self.vllm_generation.load_state(own)
        self.train(resume_from_checkpoint=str(folder))

    def _sampler_after(self, epochs: int, *args: Any, **kwargs: Any) -> Any:
        """TRL's sampler, behind the draws of so many completed epochs."""
        sampler = super()._get_train_sampler(*args, **kwargs)
        repeat_draws(sampler, epochs)
        return sampler

    # ---- a step: rows, rollout, reward ----

    def _generate_and_score_completions(self, inputs: Rows) -> dict[str, Any]:
        # Only before the first rollout. A resumed training begins after step 0, and step 0 may have several rollouts.
        if self.state.global_step == 0 and not self.vllm_generation.rollouts:
            self._measure_policy()
        self.barrier.before_rollout()
        self._began, self._waited = time.perf_counter(), self.barrier.waited_s
        rows = self.rollouts.rows(inputs)
        self._exposed_s = time.perf_counter() - self._began
        return super()._generate_and_score_completions(rows)

    def _generate(self, *args: Any) -> Any:
        generated = super()._generate(*args)
        self.barrier.after_rollout()
        return generated

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        """Return responses to TRL: (token ids, log-probs of the sampled tokens)."""
        began, taken = time.perf_counter(), self.rollouts.taken
        if taken is None:
            generated = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        else:
            generated = taken.answer(prompt_ids)
        self._exposed_s += time.perf_counter() - began  # seconds for which the trainer waited for its rollout
        return generated

    def _scored(self, *args: Any, **kwargs: Any) -> list[float | None]:
        self.rewards = list(self._reward(*args, **kwargs))
        return self.rewards

    def _measure_policy(self) -> None:
        evaluate = self.evaluate_policy
        evaluation = None if evaluate is None else evaluate(self.vllm_generation, self.state.global_step)
        if evaluation is not None:
            self._evaluations.append(evaluation)

    # ---- a step: update ----

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Any,
        attention_mask: Any,
        logits_to_keep: int,
        batch_size: Any = None,
        **options: Any,
    ) -> Any:
        forward = super()._get_per_token_logps_and_entropies
        images = any(value is not None for name, value in options.items() if name not in ENTROPY_OPTIONS)
        if images or not self.trim_padding:
            return forward(model, input_ids, attention_mask, logits_to_keep, batch_size, **options)
        multiple = self.pad_to_multiple_of or 1
        return without_padding(
            forward, model, input_ids, attention_mask, logits_to_keep, batch_size, multiple, **options
        )

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self._losses.append(float(loss))
        return loss

    # ---- a step: what is recorded ----

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        self.state.log_history.clear()  # else it grows without end, in memory and in checkpoints; metrics.jsonl has it
        if "grad_norm" not in logs:
            return  # the summary at the end of training, not a step
        own, own_sync, weights = self._trained_on()
        own = replace(own, finished=[replace(each, weights=weights) for each in own.finished])
        loss = float(np.sum(self._losses))
        self._losses = []
        norm = float(logs["grad_norm"])
        of_ranks = ranks.gather((own, self.rewards, loss, norm, own_sync, self._exposed_s))
        rollouts, rewards_of_ranks, losses, norms, syncs, exposed_s = zip(*of_ranks, strict=True)
        require_finite(losses, norms, self.state.global_step)  # before a checkpoint of this step is written
        if not ranks.is_main():
            return
        rollout = merged(rollouts)
        rewards = [reward for rewards_of_rank in rewards_of_ranks for reward in rewards_of_rank]
        waited = self.barrier.waited_s - self._waited
        problems = self.args.generation_batch_size // self.num_generations
        row = {
            "step": self.state.global_step,
            "epoch": rollout.step // max(1, len(self.train_dataset) // problems),
            **self._of_update(losses, norm, logs),
            **of_syncs(syncs),
            "lag": rollout.step - weights,
            "exposed_s": max(exposed_s),
            "step_s": time.perf_counter() - self._began - waited,
            **of_rollout(rollout, rewards),
            **({} if self.head is None else self.head.row()),
        }
        self._measure_policy()
        if self._evaluations:
            row["eval"], self._evaluations = self._evaluations, []
        self.on_step(row, rollout, rewards)

    def _of_update(self, losses: Sequence[float], norm: float, logs: Mapping[str, float]) -> dict[str, Any]:
        """Return the columns about the update. losses: one number for each rank. norm: of the gradients."""
        return {"loss": float(np.mean(losses)), "grad_norm": norm, **logged_by_trl(logs)}

    def _trained_on(self) -> tuple[Rollout, Sync, int]:
        """Return the rollout on which this step trains, the weight sync before it, and how many updates had made its
        weights."""
        taken, generation = self.rollouts.taken, self.vllm_generation
        if taken is not None:
            return taken.rollout, taken.sync, taken.weights
        assert generation.last is not None
        return generation.last, generation.sync, generation.last.step

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Wait until the rollouts that run ahead are finished, then write a checkpoint."""
        self.rollouts.wait()
        step = self.state.global_step
        scratch = Path(self.args.output_dir) / f"checkpoint-{step}"  # transformers' choice
        save_transformers_part = super()._save_checkpoint

        def write() -> None:
            save_transformers_part(model, trial)
            if ranks.is_main():
                (scratch / "training_args.bin").unlink()  # a pickle that nobody reads
                if is_mimo(policy := Path(self.vllm_generation.engine.model)):
                    put_back(scratch, mtp_tensors(policy))
            own = run_folder.own_folder(scratch)
            own.mkdir(parents=True, exist_ok=True)
            self.vllm_generation.save_state(own)
            self.rollouts.save(own)

        self.checkpoints.save(scratch, step, write, self.digests)

    def digests(self) -> dict[str, str]:
        """Digests of what all ranks have trained: weights, optimizer state, and the draft head if there is one. A
        trainer that takes another arm's weights has no optimizer state.

        All ranks must call this method.
        """
        digests = {"final_weights": weights_digest(self.model)}
        if self.trains:
            digests["optimizer"] = optimizer_digest(self.optimizer)
        if self.head is not None:
            digests["head"] = self.head.digest()
        return {name: of_all_ranks(digest) for name, digest in digests.items()}

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write no model card. TRL would write one with every checkpoint."""
