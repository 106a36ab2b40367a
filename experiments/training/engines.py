"""Engines of experiments beside those of das: vLLM as it comes, and engines that emit recorded responses.

A stock engine is unmodified vLLM, without das's worker, hooks or sampler. Its rollouts are measured from outside. It
has vLLM's own sampler and model runner, and asynchronous scheduling where the device has it. It samples other tokens
than engines of das, but from the same distribution. With `speculative` settings vLLM drafts and verifies by itself.

A recorded engine (task.recorded) emits recorded responses in place of those that it samples. The verifier raises the
recorded tokens' logits (das/verify/forced.py), so that the pass costs what it always costs. Unmodified vLLM emits the
recorded number of tokens, but others: to emit these it would need a logits processor, which takes time.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from das.cluster.cluster import STATE, Cluster
from das.drafter.saved import read_history
from das.engine.build import build_engine, warm_up
from das.engine.checked_policies import Policy, policy_of
from das.engine.patches import weights
from das.engine.patches.front_end import let_force
from das.engine.rollouts.meter import TAIL
from das.engine.rollouts.report import Finished, RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.engine.settings import HISTORY, EngineSettings
from das.general.files import write_bytes
from das.trl.engines import Engines
from das.trl.engines.in_process import DasEngine
from das.verify.admission import FORCED_KEY
from das.weights.weight_check import WeightSample, lost_weights, problem_of
from experiments.run.errors import RunFailed


@dataclass
class StepClock:
    """Records when each step of vLLM's front end is over. The rollout begins when the clock is made."""

    began: float = field(default_factory=time.perf_counter)
    step_time_s: list[float] = field(default_factory=list)  # since then
    num_finished: list[int] = field(default_factory=list)  # requests that finished in each step
    finished_s: dict[str, float] = field(default_factory=dict)  # by request id, in seconds since the rollout began
    # If vLLM drafts: tokens of each pass, by request id; drafted tokens of all requests.
    emitted: dict[str, list[int]] = field(default_factory=dict)
    drafted: int = 0

    def read(self, engine: Any, outputs: Any) -> None:
        """Count the tokens of a pass. engine: vLLM's LLMEngine. outputs: vLLM's EngineCoreOutputs."""
        for output in outputs.outputs:
            state = engine.output_processor.request_states.get(output.request_id)
            if state is not None and output.new_token_ids:  # None: it has ended, and these tokens lie behind its end
                self.emitted.setdefault(state.external_req_id, []).append(len(output.new_token_ids))
        if outputs.scheduler_stats is not None and (drafts := outputs.scheduler_stats.spec_decoding_stats):
            self.drafted += drafts.num_draft_tokens

    def record(self, finished: Sequence[str]) -> None:
        """Note that a step ended. finished: ids of the requests that finished in it."""
        now = time.perf_counter() - self.began
        self.step_time_s.append(now)
        self.num_finished.append(len(finished))
        self.finished_s.update(dict.fromkeys(finished, now))

    def finished(self, problem: str, output: Any) -> Finished:
        """Returns a response. output: vLLM's RequestOutput. The time of a request's first token is not visible from
        outside, so `first_s` is 0."""
        name, (completion,) = output.request_id, output.outputs
        emitted = self.emitted.get(name)
        passes = len(completion.token_ids if emitted is None else emitted)
        costs = Finished(passes, drafted=0, last_s=self.finished_s[name], name=name, emitted=emitted)
        return costs.answered(problem, completion)

    def report(self, finished: Sequence[Finished], seats: int) -> RolloutReport:
        """Make the report of the rollout. It assumes that in each step at most `seats` of the unfinished requests are
        live, and, where vLLM does not draft, that each of these emits one token. How many tokens were drafted for a
        single request nobody says."""
        unfinished, live = len(finished), list[int]()
        for number in self.num_finished:
            live.append(min(unfinished, seats))
            unfinished -= number
        report = RolloutReport(
            decode_steps=len(live),
            tail_steps=sum(each <= TAIL for each in live),
            step_time_s=self.step_time_s,
            step_live=live,
            step_tokens=live,
            step_emitted=live,
        ).of_requests(finished)
        return replace(report, drafted=self.drafted)


def build_stock(settings: EngineSettings, trained: bool = False, **overrides: Any) -> Any:
    """Build the engine and warm it up, because the first tokens compile a part of vLLM's sampler, for up to 10 s.

    trained: whether the engine will get new weights. vLLM's CPU build packs the weights and drops the originals, so new
    weights could not be loaded. With trained=True it keeps the originals too. It still computes with the packed ones,
    so this costs memory and no time. overrides: further arguments of vllm.LLM. Raises the errors of build_engine.
    """
    if settings.speculative:
        overrides = {"disable_log_stats": False, **overrides}  # vLLM counts drafted tokens only then
    with weights.kept_weights() if trained else nullcontext():
        llm = build_engine(settings, **overrides)
    warm_up(llm)
    return llm


def roll_out_stock(llm: Any, request: RolloutRequest) -> tuple[list[Any], Rollout]:
    """Roll out with a stock engine.

    Requests have neither seeds nor problem ids, because users of plain vLLM pass none: per-request seeds slow vLLM's
    sampler. Requests are handed over in the order given. As in other engines, tokens are decoded to text only if a stop
    string needs it. For arguments and result see `das.engine.rollouts.rollout.roll_out`.
    """
    seats = llm.llm_engine.vllm_config.scheduler_config.max_num_seqs
    parameters = request.parameters()
    for params in parameters:
        params.seed = None
        params.extra_args = None
    with _clocked(llm.llm_engine) as clock:
        outputs = llm.generate(list(request.prompts), parameters, use_tqdm=False)
        rollout_s = time.perf_counter() - clock.began
    finished = [clock.finished(problem, output) for problem, output in zip(request.problems, outputs, strict=True)]
    return outputs, Rollout(request.step, finished, rollout_s, clock.report(finished, seats))


@contextmanager
def _clocked(engine: Any) -> Iterator[StepClock]:
    """Inside the `with` block, time the front end's steps. Afterwards the engine is as it was."""
    clock, step, core = StepClock(), engine.step, engine.engine_core
    get_output = core.get_output

    def read_output() -> Any:
        outputs = get_output()
        clock.read(engine, outputs)
        return outputs

    def timed_step() -> Sequence[Any]:
        outputs: Sequence[Any] = step()
        clock.record([output.request_id for output in outputs if output.finished])
        return outputs

    engine.step = timed_step
    if engine.vllm_config.speculative_config is not None:
        core.get_output = read_output
    try:
        yield clock
    finally:
        engine.step, core.get_output = step, get_output


class StockEngine(DasEngine):
    """Unmodified vLLM, without keyed verification and drafts. Its worker has no methods of das."""

    @cached_property
    def policy(self) -> Policy:
        """See Engines."""
        return policy_of(self.llm.llm_engine.model_config, keeps_bits=False)

    def take_weights(self, sample: WeightSample) -> str:
        """See DasEngine. On the CPU vLLM computes with packed weights, so the new weights are packed."""
        weights.repack_linear_layers(self._model)
        tensors = sample.take()
        return problem_of([lost_weights(self._model, tensors, sample.syncs)])

    @property
    def _model(self) -> Any:
        """vLLM's model."""
        return self.llm.llm_engine.model_executor.driver_worker.model_runner.model

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """See Engines."""
        return roll_out_stock(self.llm, request)

    def _tell(self, method: str, *args: Any) -> None:
        """Do nothing: there is no DasWorker."""


def build_in_process(settings: EngineSettings, trained: bool = False, **overrides: Any) -> DasEngine:
    """Build an engine in this process, of das or stock as `settings.method` says. trained: whether the engine will get
    new weights. overrides: further arguments of vllm.LLM. Raises the errors of build_engine.
    """
    if settings.row.keyed:
        return DasEngine(build_engine(settings, **overrides))
    return StockEngine(build_stock(settings, trained, **overrides))


# ---- engines that emit recorded responses ----


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

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """See Engines. Raises RunFailed if other tokens come than the recorded ones."""
        responses = self.recording.of(request)
        if self.keyed:
            let_force(self.llm)
            self._tell("das_force", {str(number): response for number, response in enumerate(responses)})
        outputs, rollout = super().roll_out(RecordedRequest(**vars(request), recorded=responses, keyed=self.keyed))
        emitted = rollout.responses
        if responses != emitted if self.keyed else [*map(len, responses)] != [*map(len, emitted)]:
            raise RunFailed(
                f"step {request.step + 1}: other tokens than task.recorded has: `das doctor MODEL` says more"
            )
        return outputs, rollout


class RecordedStockEngine(RecordedEngine, StockEngine):
    """Unmodified vLLM that emits as many tokens as a recording has."""

    keyed = False


def save_history(engines: Engines | Cluster, path: Path) -> None:
    """Write the history of all engines, with the weights that the first engine's drafter has learned. Do nothing if
    the drafter has no history."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        engines.save_state(folder)
        found = folder / HISTORY
        if not found.exists():
            return
        if (folder / "engine_1").exists():
            with suppress(ValueError):  # a drafter of the user's writes files of its own
                replace(read_history(folder / STATE), weights=read_history(found).weights).write(found)
        write_bytes(path, found.read_bytes())
