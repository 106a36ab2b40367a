"""Checkpoints from which a killed training continues bit for bit.

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
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from das import ranks
from das.digests import of_all_ranks, optimizer_digest, weights_digest
from das.heads.mtp import MtpLayer, is_mimo, mtp_tensors, put_back
from das.trl.generation import SpeculativeGeneration
from experiments.run.errors import CheckpointError
from experiments.training import checkpoint

if TYPE_CHECKING:
    from experiments.training.trainer import SpeculativeGRPOTrainer

MIB = 1 << 20
STATE = "trainer_state.json"  # written by transformers
FINAL = "final.json"  # digests, so that resuming a run that had ended needs no engine


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run: their folder, how many are kept, and the identity that each records."""

    folder: Path
    keep: int
    run_identity: Mapping[str, Any]


class CheckpointWriter:
    """Writes the checkpoints of a trainer into `checkpoints`."""

    def __init__(self, trainer: "SpeculativeGRPOTrainer", checkpoints: Checkpoints):
        self.trainer = trainer
        self.checkpoints = checkpoints

    def save(self, save_transformers_part: Callable[[], None]) -> None:
        """Every rank writes its part into one folder. The main rank seals it, once all have written.

        save_transformers_part: writes into the folder that transformers has chosen. Raises CheckpointError.
        """
        trainer = self.trainer
        scratch = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"  # transformers' choice
        ranks.from_main(lambda: shutil.rmtree(scratch, ignore_errors=True))  # left by a run that was killed in here
        self._on_all_ranks(scratch, lambda: self._write(scratch, save_transformers_part))
        digests = final_digests(trainer)
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
                step = self.trainer.state.global_step
                raise CheckpointError(f"the checkpoint of step {step} could not be written: {theirs}{where}") from cause

    def _write(self, scratch: Path, save_transformers_part: Callable[[], None]) -> None:
        save_transformers_part()
        if ranks.is_main():
            (scratch / "training_args.bin").unlink()  # a pickle that nobody reads
            put_back_mtp(self.trainer.vllm_generation, scratch)
        own = ranks.own_folder(scratch)
        own.mkdir(parents=True, exist_ok=True)
        self.trainer.vllm_generation.save_state(own)
        self.trainer.rollouts_ahead.save(own)

    def _seal(self, scratch: Path, digests: Mapping[str, str]) -> None:
        if ranks.is_main():
            (scratch / FINAL).write_text(json.dumps(digests))
            kept = self.checkpoints
            checkpoint.seal(scratch, kept.folder, self.trainer.state.global_step, kept.run_identity)
            checkpoint.prune(kept.folder, kept.keep)


def completed_epochs(folder: Path) -> int:
    """Epochs that the run had completed when the checkpoint in this folder was saved."""
    return int(json.loads((folder / STATE).read_text())["epoch"])


def put_back_mtp(generation: SpeculativeGeneration, saved: Path) -> None:
    """Complete a saved policy by its MTP layer, as it is now, if it has one."""
    policy, online = Path(generation.engine.model), generation.head
    if is_mimo(policy):
        learns = online is not None and isinstance(online.head, MtpLayer)
        put_back(saved, online.tensors() if online is not None and learns else mtp_tensors(policy))


def final_digests(trainer: "SpeculativeGRPOTrainer") -> dict[str, str]:
    """Digests of what all ranks have trained: weights, optimizer state, and the draft head if there is one.

    All ranks must call it.
    """
    head = trainer.vllm_generation.head
    digests = {"final_weights": weights_digest(trainer.model), "optimizer": optimizer_digest(trainer.optimizer)}
    if head is not None:
        digests["head"] = head.digest()
    return {name: of_all_ranks(digest) for name, digest in digests.items()}
