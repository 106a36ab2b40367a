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
from typing import Any

from safetensors import SafetensorError

from das.general import ranks
from das.general.errors import reason_of
from das.general.files import write_text
from experiments.run.errors import CheckpointError
from experiments.training import checkpoint

MIB = 1 << 20
FINAL = "final.json"  # digests of the final state, so that no engine is needed to resume a finished run


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run: their folder, how many to keep, and the identity of the run, which each one records."""

    folder: Path
    keep: int
    run_identity: Mapping[str, Any]

    def save(
        self, scratch: Path, step: int, write: Callable[[], None], digests: Callable[[], Mapping[str, str]]
    ) -> None:
        """Save the checkpoint of `step`. All ranks call it: each writes its part into one folder, `scratch`, which the
        main rank then seals.

        write: writes this rank's part. digests: returns those of the state, after all ranks have written. Raises
        CheckpointError.
        """
        ranks.from_main(lambda: shutil.rmtree(scratch, ignore_errors=True))  # left by a run that was killed here
        self._on_all_ranks(scratch, step, write)
        final = digests()
        self._on_all_ranks(scratch, step, lambda: self._seal(scratch, step, final))

    def _on_all_ranks(self, scratch: Path, step: int, work: Callable[[], None]) -> None:
        """Call `work`, which writes a part of the checkpoint in `scratch`. If it fails on any rank, the main rank
        deletes `scratch` and all ranks raise CheckpointError.
        """
        cause, problem = None, ""
        try:
            work()
        except (OSError, RuntimeError, SafetensorError) as error:  # RuntimeError: torch.save on a full disk
            # torch.save's message does not name a full disk.
            full = shutil.disk_usage(self.folder.parent).free < MIB
            cause, problem = error, "disk full" if full else reason_of(error)[:300]
        for rank, theirs in enumerate(ranks.gather(problem)):
            if theirs:
                ranks.from_main(lambda: shutil.rmtree(scratch, ignore_errors=True))
                where = f" (rank {rank})" if ranks.count() > 1 else ""
                raise CheckpointError(f"the checkpoint of step {step} could not be written: {theirs}{where}") from cause

    def _seal(self, scratch: Path, step: int, digests: Mapping[str, str]) -> None:
        if ranks.is_main():
            write_text(scratch / FINAL, json.dumps(digests))
            checkpoint.seal(scratch, self.folder, step, self.run_identity)
            checkpoint.prune(self.folder, self.keep)
