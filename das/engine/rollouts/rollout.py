"""Do a rollout (generate a batch of responses) with an engine. Each request gets a seed and a problem id; all costs are
measured."""

import hashlib
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from das.budget.lengths import LongestFirst
from das.engine.rollouts.report import Finished, RolloutReport, finished_from_plain
from das.verify.admission import PROBLEM_KEY
from das.verify.noise import splitmix64

EVALUATION = 2  # last part of the seeds of evaluations
TURN = 4  # the last part of the seeds of `request_seed` is TURN * turn, plus one in evaluations


@dataclass(frozen=True)
class RolloutRequest:
    """The prompts to roll out: `prompts[i]`, of problem `problems[i]`, gets a response, sampled with `seeds[i]`."""

    prompts: Sequence[Any]  # in a form that vLLM's generate takes
    sampling_params: Any  # shared by all prompts; n must be 1
    problems: Sequence[str]
    seeds: Sequence[int]
    step: int
    next_history_tick: int  # the drafter's history tick once this rollout is over
    schedule: LongestFirst | None = None  # orders the requests, and learns from their lengths; None: keep their order
    evaluation: bool = False  # the training does not notice an evaluation: it joins no history, and teaches nothing
    # The number of this turn, from 0, of a rollout that has several and is over at `end_turns`; None: it has one. The
    # responses of a turn join the history, but the drafter's window does not move.
    turn: int | None = None

    def order(self) -> list[int]:
        """Returns the indices of the prompts, in the order in which they are handed to an engine."""
        return list(range(len(self.prompts))) if self.schedule is None else self.schedule.order(self.problems)

    def parameters(self) -> list[Any]:
        """Returns the sampling parameters of each prompt: a copy of the shared ones with the prompt's seed and problem
        id.

        Raises ValueError for n > 1, and if prompts, problems and seeds differ in number.
        """
        if self.sampling_params.n != 1:
            raise ValueError(
                f"SamplingParams.n={self.sampling_params.n}: set n=1 and repeat each prompt, with a seed for each copy"
            )
        if not len(self.problems) == len(self.prompts) == len(self.seeds):
            raise ValueError(
                f"{len(self.prompts)} prompts but {len(self.problems)} problem ids and {len(self.seeds)} seeds"
            )
        return [
            own_parameters(self.sampling_params, seed, problem)
            for seed, problem in zip(self.seeds, self.problems, strict=True)
        ]


def own_parameters(sampling_params: Any, seed: int, problem: str) -> Any:
    """Returns a copy of a rollout's sampling parameters with the seed and the problem id of one request."""
    own = sampling_params.clone()
    own.seed = seed
    own.extra_args = {**(own.extra_args or {}), PROBLEM_KEY: problem}
    own.detokenize = bool(own.stop)  # only stop strings need text; everything else reads token ids
    return own


@dataclass(frozen=True)
class Rollout:
    """One finished rollout: `finished[i]` answers prompt i. Times are in seconds."""

    step: int
    finished: list[Finished]
    rollout_s: float
    report: RolloutReport

    @property
    def responses(self) -> list[list[int]]:
        """The token ids of each response."""
        return [list(each.tokens) for each in self.finished]

    @property
    def tokens(self) -> int:
        """The number of response tokens of all requests."""
        return sum(len(each.tokens) for each in self.finished)

    @property
    def accepted(self) -> int:
        """The number of drafted tokens that were accepted, over all requests."""
        return sum(each.accepted for each in self.finished)


def request_seed(run_seed: int, step: int, index: int, evaluation: bool = False, turn: int = 0) -> int:
    """Returns the seed of a step's response number `index`. It differs between all requests of a run, and is the same
    for all methods.

    turn: counted from 0; each turn of a response is a request of its own.
    """
    return _mixed(run_seed, step, index, int(evaluation) + TURN * turn)


def evaluation_seed(run_seed: int, step: int, problem: str, sample: int) -> int:
    """Returns the seed of a problem's response number `sample` in an evaluation after `step`. It does not depend on
    which other problems are evaluated."""
    digest = hashlib.sha256(problem.encode()).digest()
    return _mixed(run_seed, step, int.from_bytes(digest[:8], "little"), sample, EVALUATION)


def _mixed(run_seed: int, *parts: int) -> int:
    mixed = np.uint64(run_seed)
    for part in parts:
        mixed = splitmix64(np.array([mixed ^ np.uint64(part)], np.uint64))[0]
    return int(mixed >> np.uint64(2))


def roll_out(llm: Any, request: RolloutRequest) -> tuple[list[Any], Rollout]:
    """Generate one response for each prompt of `request`.

    llm: vLLM's LLM, built with das. Returns vLLM's outputs, in the order of the prompts, and the measured rollout.
    Warns of each alarm by a RuntimeWarning, for several turns after the last one (`end_turns`). Raises ValueError for a
    request that `RolloutRequest.parameters` refuses.
    """
    parameters, order = request.parameters(), request.order()
    if request.turn:
        llm.collective_rpc("das_begin_turn", args=(len(parameters),))
    else:
        llm.collective_rpc("das_begin_rollout", args=(len(parameters), request.evaluation))
    start = time.perf_counter()
    ordered_outputs = llm.generate([request.prompts[i] for i in order], [parameters[i] for i in order], use_tqdm=False)
    rollout_s = time.perf_counter() - start
    by_prompt = sorted(zip(order, ordered_outputs, strict=True), key=lambda pair: pair[0])
    outputs = [output for _, output in by_prompt]
    if request.turn is None:
        plain = llm.collective_rpc("das_end_rollout", args=(request.next_history_tick,))[0]
    else:
        plain = llm.collective_rpc("das_end_turn")[0]
    by_name = finished_from_plain(plain)
    finished = [
        by_name[output.request_id].answered(problem, output.outputs[0])
        for output, problem in zip(outputs, request.problems, strict=True)
    ]
    rollout = measured_rollout(request, finished, rollout_s, RolloutReport.from_plain(plain))
    if request.turn is None:
        warn_of(rollout.report, request.step)
    return outputs, rollout


def end_turns(llm: Any, step: int, next_history_tick: int) -> RolloutReport:
    """End a rollout of several turns: the drafter's window moves to `next_history_tick`. Returns a report of the time
    since the last turn."""
    report = RolloutReport.from_plain(llm.collective_rpc("das_end_rollout", args=(next_history_tick,))[0])
    warn_of(report, step)
    return report


def warn_of(report: RolloutReport, step: int) -> None:
    """Warn of each alarm by a RuntimeWarning."""
    for alarm in report.alarms:
        warnings.warn(f"speculation, step {step}: {alarm}", RuntimeWarning, stacklevel=3)


def measured_rollout(
    request: RolloutRequest, finished: list[Finished], rollout_s: float, report: RolloutReport
) -> Rollout:
    """Make the Rollout of these responses, and let the schedule learn their lengths. finished: in order of prompts."""
    if request.schedule is not None:
        request.schedule.observe(request.problems, [len(each.tokens) for each in finished])
    return Rollout(request.step, finished, rollout_s, report.of_requests(finished))
