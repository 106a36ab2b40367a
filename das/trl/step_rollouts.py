"""Where the rows and the responses of training steps come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from das.engine.rollouts.rollout import Rollout
from das.general.errors import EngineError

Rows = list[Mapping[str, Any]]  # of a data set, one for each response


@dataclass
class Sync:
    """Measurements of the sync by which an engine got the weights of a rollout."""

    seconds: float = 0.0
    check_s: float = 0.0  # part of `seconds`: the weight check
    exchange_s: float = 0.0  # part of `seconds`: a rank waits for what others finished
    exchange_bytes: int = 0  # that this rank gave for it


@dataclass(frozen=True)
class FinishedRollout:
    """A rollout that waits for its training step."""

    rollout: Rollout  # its log-probs are those of the weights that sampled it
    prompts: list[list[int]]  # token ids
    weights: int  # number of updates that these weights had seen
    sync: Sync

    def answer(self, prompt_ids: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[Any]]:
        """Returns what TRL's `_generate_single_turn` returns for these prompts: token ids and log-probs of the
        responses. Raises EngineError if the rollout has other prompts."""
        if self.prompts != prompt_ids:
            raise EngineError(
                f"a step trains on other rows than rollout {self.rollout.step} has: rollouts ahead need TRL's own "
                "order of the data"
            )
        return self.rollout.responses, [each.logprobs for each in self.rollout.finished]


class StepRollouts:
    """Gives each training step its rows and their responses.

    This class is for steps that wait for TRL's own rollout of TRL's own rows. Subclasses have the rollout of a step
    before TRL asks for it.
    """

    lag = 0  # training steps between the weights that sample and the update that uses the responses
    taken: FinishedRollout | None = None  # on which the running step trains; None: TRL's own code rolls out

    def __init__(self, trainer: Any):
        """trainer: one of TRL, with a generation backend of das."""
        self.trainer = trainer

    def rows(self, drawn: Rows) -> Rows:
        """Begin a step. Returns the rows on which it trains. drawn: those that TRL has drawn for it. All ranks must
        call this method."""
        self.trainer.vllm_generation.announce(self.trainer, drawn)
        return drawn

    def begin(self) -> None:
        """Forget the rollouts of an earlier training, which no step took."""

    def wait(self) -> None:
        """Wait until no rollout runs. Raises the error of a rollout."""

    def save(self, folder: Path) -> None:
        """Write what waits for later steps into the folder of a checkpoint."""

    def resume(self, folder: Path, step: int) -> None:
        """Continue from what `save` wrote into this folder after `step`."""
