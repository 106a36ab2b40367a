"""Write checkpoints from which a killed training continues bit for bit.

transformers saves and loads the policy, the optimizer, the scheduler, random states and its own counters (torch files,
read with weights_only). This project adds three things: the order of the data, which TRL draws from a generator that no
checkpoint holds (das/trl/resume.py); the drafter's history and everything else that the rollout side has learned; and
atomic writing. Each rank writes its own random state and its own rollout side. The main rank writes what all ranks
share.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from das import ranks
from das.errors import reason_of
from das.files import write_text
from experiments import rank_folders
from experiments.digests import of_all_ranks, optimizer_digest, weights_digest
from experiments.heads.mtp import is_mimo, mtp_tensors, put_back
from experiments.run.errors import CheckpointError
from experiments.training import checkpoint

if TYPE_CHECKING:
    from experiments.training.trainer import SpeculativeGRPOTrainer

MIB = 1 << 20
FINAL = "final.json"  # digests of the final state, so that no engine is needed to resume a finished run


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run: their folder, how many to keep, and the identity of the run, which each one records."""

    folder: Path
    keep: int
    run_identity: Mapping[str, Any]


class CheckpointWriter:
    """Writes the checkpoints of a trainer into `checkpoints`."""

    def __init__(self, trainer: "SpeculativeGRPOTrainer", checkpoints: Checkpoints):
        self.trainer = trainer
        self.checkpoints = checkpoints

    def save(self, save_transformers_part: Callable[[], None]) -> None:
        """Save a checkpoint. All ranks call it: each writes its part into one folder, which the main rank then seals.

        save_transformers_part: writes into the folder that transformers has chosen. Raises CheckpointError.
        """
        trainer = self.trainer
        scratch = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"  # transformers' choice
        ranks.from_main(lambda: shutil.rmtree(scratch, ignore_errors=True))  # left by a run that was killed here
        self._on_all_ranks(scratch, lambda: self._write(scratch, save_transformers_part))
        digests = final_digests(trainer)
        self._on_all_ranks(scratch, lambda: self._seal(scratch, digests))

    def _on_all_ranks(self, scratch: Path, work: Callable[[], None]) -> None:
        """Call `work`, which writes a part of the checkpoint in `scratch`. If it fails on any rank, the main rank
        deletes `scratch` and all ranks raise CheckpointError.
        """
        cause, problem = None, ""
        try:
            work()
        except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: torch.save on a full disk
            # torch.save's message does not name a full disk.
            full = shutil.disk_usage(self.checkpoints.folder.parent).free < MIB
            cause, problem = error, "disk full" if full else reason_of(error)[:300]
        for rank, theirs in enumerate(ranks.gather(problem)):
            if theirs:
                ranks.from_main(lambda: shutil.rmtree(scratch, ignore_errors=True))
                where = f" (rank {rank})" if ranks.count() > 1 else ""
                step = self.trainer.state.global_step
                raise CheckpointError(f"the checkpoint of step {step} could not be written: {theirs}{where}") from cause

    def _write(self, scratch: Path, save_transformers_part: Callable[[], None]) -> None:
        save_transformers_part()
        if ranks.is_main():
            (scratch / "training_args.bin").unlink()  # a pickle that nobody reads
            if is_mimo(policy := Path(self.trainer.vllm_generation.engine.model)):
                put_back(scratch, mtp_tensors(policy))
        own = rank_folders.own_folder(scratch)
        own.mkdir(parents=True, exist_ok=True)
        self.trainer.vllm_generation.save_state(own)
        self.trainer.rollouts_ahead.save(own)

    def _seal(self, scratch: Path, digests: Mapping[str, str]) -> None:
        if ranks.is_main():
            write_text(scratch / FINAL, json.dumps(digests))
            kept = self.checkpoints
            checkpoint.seal(scratch, kept.folder, self.trainer.state.global_step, kept.run_identity)
            checkpoint.prune(kept.folder, kept.keep)


def final_digests(trainer: "SpeculativeGRPOTrainer") -> dict[str, str]:
    """Digests of what all ranks have trained: weights, optimizer state, and the draft head if there is one. A trainer
    that takes another arm's weights has no optimizer state.

    All ranks must call this function.
    """
    digests = {"final_weights": weights_digest(trainer.model)}
    if trainer.trains:
        digests["optimizer"] = optimizer_digest(trainer.optimizer)
    if trainer.head is not None:
        digests["head"] = trainer.head.digest()
    return {name: of_all_ranks(digest) for name, digest in digests.items()}
