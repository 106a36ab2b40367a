"""task=calibrate: measure the time of a decode pass in this engine on this machine, and fit latency forms to it.

Every combination of live requests and draft length is timed. Drafts are random tokens: they are verified and hardly
ever accepted, so the batch stays as it is. latency.json (experiments/simulate/times.py) gets the timed passes,
the coefficients of each form (seconds), and its mean absolute relative error on passes that it was not fitted to.
result.json: forms, passes (the number of timed passes).
"""

import random
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from das.drafter import Draft, Drafter
from das.engine.settings import find_method
from experiments.arm.data import tokenized
from experiments.arm.engine import engine_settings, prepare_process
from experiments.arm.models import policy_directory
from experiments.arm.validate import check
from experiments.run.errors import RunFailed, UserError
from experiments.run.progress import Progress, quiet_into
from experiments.run.run_folder import RunFolder, device_name
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig, run_config
from experiments.simulate.times import write_latency

if TYPE_CHECKING:
    from das.engine.runner.runner import Runner

WARM_UP = 4  # passes before the first timed one


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Time the passes, fit the forms, and print their errors. Writes latency.json and result.json."""
    task = config.task
    _check(config)
    config = run_config(composed.changed({"arm": "das", "budget": {"name": "fixed", "tokens": max(1, *task.drafts)}}))
    check(config)
    run_folder = RunFolder(Path(folder), config.resolved)
    progress = Progress(0)
    policy, name = policy_directory(config, progress.note), f"policy {config.policy.name}"
    with quiet_into(Path(folder) / "log.txt") as progress.terminal:
        rows = measure(config, task, policy, progress)
    progress.terminal = sys.stdout
    path = Path(folder) / "latency.json"
    forms = write_latency(path, rows, f"vLLM, {name} on {device_name()}")
    for name, form in forms.items():
        progress.note(f"{name:12s} error {100 * form['error']:5.1f} %   {form['coefficients']}")
    run_folder.write_result({"forms": forms, "passes": len(rows)})
    progress.note(f"latency model: {path}  (task.latency={path} of advise)")


def _check(config: RunConfig) -> None:
    task = config.task
    if not find_method(config.arm.method).keyed:
        raise UserError(f"arm={config.arm.name}: task=calibrate times passes that verify drafts; leave arm= out")
    if not (task.live and task.drafts):
        raise UserError("task.live, task.drafts: name one or more numbers for each")
    needed = 2 * (WARM_UP + task.passes) + max(task.drafts)
    if config.trainer.max_completion_length < needed:
        raise UserError(
            f"trainer.max_completion_length={config.trainer.max_completion_length}: task.passes={task.passes} with "
            f"drafts of {max(task.drafts)} take up to {needed} tokens"
        )


def measure(config: RunConfig, task: Any, policy: str, progress: Progress) -> list[list[float]]:
    """Time the passes. Returns a row for each: live requests, tokens in the pass, tokens of context, seconds.

    task: the settings of this task.
    """
    prepare_process(config)
    from das.engine.build import build_engine

    llm = build_engine(engine_settings(config, policy), max_num_seqs=max(task.live))
    engine = llm.llm_engine
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.das_runner
    runner.flights.drafter.draft_round.drafter = RandomDrafter(engine.model_config.get_vocab_size())
    prompts = [prompt for _, prompt in tokenized(config, policy)]
    combinations, order = list(product(task.live, task.drafts)), random.Random(0)
    rows: list[list[float]] = []
    for turn in range(task.rounds):
        order.shuffle(combinations)
        for live, drafts in combinations:
            of_live = [prompts[i % len(prompts)] for i in range(live)]
            name, most = f"{turn}-{live}-{drafts}", config.trainer.max_completion_length
            rows += timed_combination(engine, runner, of_live, drafts, name, most, int(task.passes))
        progress.note(f"round {turn + 1} of {task.rounds}: {len(rows)} passes")
    return rows


# ---- timing ----


class RandomDrafter(Drafter):
    """A drafter that proposes random tokens, always as many as allowed."""

    def __init__(self, vocabulary: int):
        self._random = np.random.default_rng(0)
        self._vocabulary = vocabulary

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        return [Draft(self._random.integers(0, self._vocabulary, limit).tolist(), [1.0] * limit) for limit in limits]

    def begin(
        self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None
    ) -> None: ...
    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None: ...
    def end(self, request: str, keep: bool = True) -> None: ...


def timed_combination(
    engine: Any, runner: "Runner", prompts: Sequence[Any], drafts: int, name: str, tokens: int, count: int
) -> list[list[float]]:
    """Time `count` passes of these prompts with `drafts` random drafted tokens each (RandomDrafter drafts), and drop
    the requests, which may take `tokens` tokens. Returns the rows of timed_passes."""
    from vllm import SamplingParams

    from das.budget.policies import Fixed, NoDrafts

    proposer = runner.flights.proposer
    assert proposer is not None
    proposer.draft_round.budget = Fixed(drafts) if drafts else NoDrafts()
    names = [f"{name}-{i}" for i in range(len(prompts))]
    sampled: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": True, "detokenize": False}
    for i, prompt in enumerate(prompts):
        engine.add_request(names[i], prompt, SamplingParams(temperature=1.0, seed=i, **sampled))
    rows = timed_passes(engine, runner, len(prompts), drafts, count)
    engine.abort_request(names)
    while engine.has_unfinished_requests():
        engine.step()
    return rows


def timed_passes(engine: Any, runner: "Runner", live: int, drafts: int, count: int) -> list[list[float]]:
    """Time `count` passes in which all `live` requests decode and each verifies `drafts` drafted tokens, each behind
    other such passes: from the end of one to the end of the next.

    Returns a row for each: live requests, tokens in the pass, tokens of context, seconds. Raises RunFailed if the
    responses end before.
    """
    meter, wanted, contexts = runner.flights.meter, (live, live * (1 + drafts)), list[int]()
    first = len(meter.step_live)
    rows: list[list[float]] = []
    while len(rows) < WARM_UP + count:
        if not engine.has_unfinished_requests():
            raise RunFailed(f"responses ended before {count} passes of {live} requests with {drafts} drafts were timed")
        engine.step()
        context = sum(r.prompt + len(r.output_token_ids) for r in runner.flights.requests.known.values())
        ends = meter.step_time_s[first:]
        contexts += [context] * (len(ends) - len(contexts))  # with asynchronous scheduling passes are counted later
        full = [pair == wanted for pair in zip(meter.step_live[first:], meter.step_tokens[first:], strict=True)]
        rows = [[*wanted, contexts[i], ends[i] - ends[i - 1]] for i in range(1, len(full)) if full[i] and full[i - 1]]
    return rows[WARM_UP : WARM_UP + count]
