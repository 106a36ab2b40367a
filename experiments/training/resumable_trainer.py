"""A GRPO trainer that can be killed: a run that resumes from its checkpoints continues bit for bit.

transformers saves and loads the policy, the optimizer, the scheduler, random states and its own counters (torch files,
read with weights_only). This module adds three things: the order of the data, which TRL draws from a generator that no
checkpoint holds; the drafter's history and everything else that the rollout side has learned; atomic writing.

Of several ranks each writes its random state (transformers) and its rollout side; the main rank writes all that they
share.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from das import ranks
from das.digests import of_all_ranks, optimizer_digest, weights_digest
from das.heads.mtp import MtpLayer, is_mimo, mtp_tensors, put_back
from das.trl.generation import SpeculativeGeneration
from experiments.run.errors import CheckpointError
from experiments.training import checkpoint
from experiments.training.trimmed_trainer import TrimmedGRPOTrainer

MIB = 1 << 20
STATE = "trainer_state.json"  # written by transformers
FINAL = "final.json"  # digests, so that resuming a run that had ended needs no engine


@dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints go, how many are kept, and what each records about its run (`checkpoint.run_identity`)."""

    folder: Path
    keep: int
    run_identity: Mapping[str, Any]


class ResumableGRPOTrainer(TrimmedGRPOTrainer):
    """Saves into `checkpoints` every `args.save_steps` steps."""

    vllm_generation: SpeculativeGeneration
    checkpoints: Checkpoints
    _epochs_before = 0  # epochs that the run had completed when its checkpoint was saved

    def resume(self, step: int) -> None:
        """Continue training from the checkpoint of `step`, which must have been verified."""
        folder = checkpoint.step_folder(self.checkpoints.folder, step)
        # An epoch is one draw of TRL's sampler. Completed epochs are drawn again here; of the current epoch,
        # transformers skips the steps that were trained already.
        self._epochs_before = int(json.loads((folder / STATE).read_text())["epoch"])
        self.vllm_generation.load_state(ranks.own_folder(folder))
        self.train(resume_from_checkpoint=str(folder))

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        sampler = super()._get_train_sampler(*args, **kwargs)
        for _ in range(self._epochs_before):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Every rank writes its part into one folder. The main rank seals it, once all have written."""
        scratch = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"  # transformers' choice
        ranks.from_main(lambda: shutil.rmtree(scratch, ignore_errors=True))  # left by a run that was killed in here
        self._on_all_ranks(scratch, lambda: self._write(scratch, model, trial))
        digests = self.final_digests()
        self._on_all_ranks(scratch, lambda: self._seal(scratch, digests))

    def _on_all_ranks(self, scratch: Path, work: Callable[[], None]) -> None:
        """Do a part of the checkpoint in `scratch` on every rank. If one fails, all delete it and raise
        CheckpointError.
        """
        cause, problem = None, ""
        try:
            work()
        except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: torch.save on a full disk
            # torch.save's message does not name a full disk.
            full = shutil.disk_usage(self.checkpoints.folder.parent).free < MIB
            cause, problem = error, "disk full" if full else " ".join(str(error).split())[:300]
        for rank, theirs in enumerate(ranks.gather(problem)):
            if theirs:
                ranks.from_main(lambda: shutil.rmtree(scratch, ignore_errors=True))
                where = f" (rank {rank})" if ranks.count() > 1 else ""
                step = self.state.global_step
                raise CheckpointError(f"the checkpoint of step {step} could not be written: {theirs}{where}") from cause

    def _write(self, scratch: Path, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if ranks.is_main():
            (scratch / "training_args.bin").unlink()  # a pickle that nobody reads
            self._put_back_mtp(scratch)
        own = ranks.own_folder(scratch)
        own.mkdir(parents=True, exist_ok=True)
        self._save_rollouts(own)

    def _seal(self, scratch: Path, digests: Mapping[str, str]) -> None:
        if ranks.is_main():
            (scratch / FINAL).write_text(json.dumps(digests))
            kept = self.checkpoints
            checkpoint.seal(scratch, kept.folder, self.state.global_step, kept.run_identity)
            checkpoint.prune(kept.folder, kept.keep)

    def _put_back_mtp(self, saved: Path) -> None:
        """Complete a saved policy by its MTP layer, as it is now, if it has one."""
        policy, online = Path(self.vllm_generation.engine.model), self.vllm_generation.head
        if is_mimo(policy):
            learns = online is not None and isinstance(online.head, MtpLayer)
            put_back(saved, online.tensors() if online is not None and learns else mtp_tensors(policy))

    def _save_rollouts(self, folder: Path) -> None:
        """Write what the rollout side needs to go on."""
        self.vllm_generation.save_state(folder)

    def final_digests(self) -> dict[str, str]:
        """Digests of what all ranks have trained: weights, optimizer state, and the draft head if there is one.

        All ranks must call it.
        """
        head = self.vllm_generation.head
        digests = {"final_weights": weights_digest(self.model), "optimizer": optimizer_digest(self.optimizer)}
        if head is not None:
            digests["head"] = head.digest()
        return {name: of_all_ranks(digest) for name, digest in digests.items()}

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write none. TRL would write one with every checkpoint."""
