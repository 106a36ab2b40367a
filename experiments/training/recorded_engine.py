"""Engines that emit recorded responses in place of those that they sample (task.recorded).

The verifier raises the recorded tokens' logits (das/verify/forced.py), so that the pass costs what it always costs.
Unmodified vLLM emits the recorded number of tokens, but others: to emit these it would need a logits processor, which
takes time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from das.engine.patches.front_end import let_force
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.engine.settings import EngineSettings
from das.trl.engines.in_process import DasEngine
from das.verify.admission import FORCED_KEY
from experiments.run.errors import RunFailed
from experiments.training.stock import StockEngine, build_in_process


@dataclass(frozen=True)
class Recording:
    """The responses that a run emits. responses: by problem, the first `group` to its first visit, and so on."""

    responses: Mapping[str, Sequence[Sequence[int]]]
    group: int
    steps_per_epoch: int

    def of(self, request: RolloutRequest) -> list[list[int]]:
        """Return the response to each prompt of a request."""
        first = request.step // self.steps_per_epoch * self.group
        taken: Counter[str] = Counter()
        found = []
        for problem in request.problems:
            found.append(list(self.responses[problem][first + taken[problem]]))
            taken[problem] += 1
        return found


@dataclass(frozen=True)
class RecordedRequest(RolloutRequest):
    """Prompts with the responses that are emitted. keyed: whether das verifies, and so emits these very tokens."""

    recorded: Sequence[Sequence[int]] = ()
    keyed: bool = True

    def parameters(self) -> list[Any]:
        """See RolloutRequest."""
        found = super().parameters()
        for number, (own, response) in enumerate(zip(found, self.recorded, strict=True)):
            if self.keyed:
                own.extra_args[FORCED_KEY] = str(number)
            else:
                own.max_tokens, own.ignore_eos = len(response), True
        return found


class RecordedEngine(DasEngine):
    """An engine of das that emits a recording."""

    recording: Recording
    keyed = True

    def roll_out(self, request: RolloutRequest, turn: int | None = None) -> tuple[list[Any], Rollout]:
        """See Engines. Raises RunFailed if other tokens come than the recorded ones."""
        responses = self.recording.of(request)
        if self.keyed:
            let_force(self.llm)
            self._tell("das_force", {str(number): response for number, response in enumerate(responses)})
        outputs, rollout = super().roll_out(
            RecordedRequest(**vars(request), recorded=responses, keyed=self.keyed), turn
        )
        same = responses == rollout.responses if self.keyed else _lengths(responses) == _lengths(rollout.responses)
        if not same:
            raise RunFailed(
                f"step {request.step + 1}: other tokens than task.recorded has: `das doctor MODEL` says more"
            )
        return outputs, rollout


class RecordedStockEngine(RecordedEngine, StockEngine):
    """Unmodified vLLM that emits as many tokens as a recording has."""

    keyed = False


def _lengths(responses: Sequence[Sequence[int]]) -> list[int]:
    return [len(response) for response in responses]


def build_recorded(settings: EngineSettings, recording: Recording, **overrides: Any) -> RecordedEngine:
    """Build an engine that emits a recording, in this process. overrides: further arguments of vllm.LLM."""
    engine = build_in_process(settings, trained=True, **overrides)
    emitting = (RecordedEngine if settings.row.keyed else RecordedStockEngine)(engine.llm)
    emitting.recording = recording
    return emitting
