"""A GRPO trainer that can be killed: checkpoints that continue bit for bit, by transformers' own where it has them.

transformers saves and loads policy, optimizer, scheduler, random states and its own counters (torch files, read with
weights_only). Added here: the data's order, which TRL draws from a generator that no checkpoint holds; the drafter's
history and what else the rollout side has learned; atomic writing.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from trl import GRPOTrainer

from das.training import checkpoint
from das.training.checkpoint import CheckpointError
from das.training.digests import optimizer_digest, weights_digest
from das.training.generation import SpeculativeGeneration

MIB = 1 << 20
STATE = "trainer_state.json"  # transformers'
FINAL = "final.json"  # digests, so that a run that had ended needs no engine to say so


@dataclass(frozen=True)
class Checkpoints:
    """Where checkpoints go, how many stay, and what each says about its run."""

    folder: Path
    keep: int
    about: Mapping[str, Any]


class ResumableGRPOTrainer(GRPOTrainer):
    """Saves into `checkpoints`, in step with `args.save_steps`."""

    vllm_generation: SpeculativeGeneration
    checkpoints: Checkpoints
    _epochs_before = 0  # whole epochs that the run this one continues had seen

    def resume(self, step: int) -> None:
        """Train on from the checkpoint of `step`, which must have been verified."""
        folder = checkpoint.place(self.checkpoints.folder, step)
        # An epoch is one draw of TRL's sampler: those before are drawn again, and the rest of this one is skipped.
        self._epochs_before = int(json.loads((folder / STATE).read_text())["epoch"])
        self.vllm_generation.load_state(folder)
        self.train(resume_from_checkpoint=str(folder))

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        sampler = super()._get_train_sampler(*args, **kwargs)
        for _ in range(self._epochs_before):
            torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        scratch = Path(self.args.output_dir) / f"checkpoint-{step}"  # transformers' choice
        try:
            shutil.rmtree(scratch, ignore_errors=True)  # of a run killed in here
            super()._save_checkpoint(model, trial)
            (scratch / "training_args.bin").unlink()  # a pickle, read by nobody
            self.vllm_generation.save_state(scratch)
            final = {"final_weights": weights_digest(self.model), "optimizer": optimizer_digest(self.optimizer)}
            (scratch / FINAL).write_text(json.dumps(final))
            checkpoint.seal(scratch, self.checkpoints.folder, step, self.checkpoints.about)
            checkpoint.prune(self.checkpoints.folder, self.checkpoints.keep)
        except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: torch.save on a full disk
            # torch.save tells of a full disk in riddles only.
            full = shutil.disk_usage(self.checkpoints.folder.parent).free < MIB
            why = "disk full" if full else " ".join(str(error).split())[:300]
            shutil.rmtree(scratch, ignore_errors=True)
            raise CheckpointError(f"the checkpoint of step {step} could not be written: {why}") from error

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """None: TRL would write one with every checkpoint."""
