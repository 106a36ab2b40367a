"""task=calibrate: measure the time of a decode pass in this engine on this machine, and fit latency forms to it.

Every combination of live requests and draft length is timed. Drafts are random tokens: they are verified and hardly
ever accepted, so the batch stays as it is. latency.json (experiments/simulate/latency_files.py) gets the timed passes,
the coefficients of each form (seconds), and its mean absolute relative error on passes that it was not fitted to.
result.json: forms, passes (the number of timed passes).
"""

import random
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from analysis.figures import calibration_figure
from das.engine.settings import find_method
from experiments.arm.engine import engine_settings, prepare_process
from experiments.arm.policies import policy_directory
from experiments.arm.rollout_steps import tokenized
from experiments.arm.validate import check
from experiments.measure.pass_timing import WARM_UP, RandomDrafter, made_up_prompts, timed_combination
from experiments.run.errors import UserError
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, device_name
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig, run_config
from experiments.simulate.latency_files import write_latency
from experiments.simulate.latency_forms import Drafting
from experiments.small_policy.shapes import shape_of, weightless_policy

VOCABULARY = 1024  # tokens in the vocabulary, for shapes that do not set it


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Time the passes, fit the forms, and print their errors. Writes latency.json, result.json and a figure."""
    task = config.task
    _check(config)
    config = run_config(composed.changed({"arm": "das", "budget": {"name": "fixed", "tokens": max(1, *task.drafts)}}))
    check(config)
    run_folder = RunFolder(Path(folder), config.resolved)
    progress = Progress(0)
    if task.shape is None:
        policy, name = policy_directory(config, progress.note), f"policy {config.policy.name}"
    else:
        policy, name = shaped_policy(config, task.shape), f"random weights of shape {task.shape}"
    with quiet_into(Path(folder) / "log.txt") as progress.terminal:
        rows = measure(config, task, policy, progress)
    progress.terminal = sys.stdout
    path = Path(folder) / "latency.json"
    forms = write_latency(path, rows, f"vLLM, {name} on {device_name()}")
    for name, form in forms.items():
        progress.note(f"{name:12s} error {100 * form['error']:5.1f} %   {form['coefficients']}")
    run_folder.write_result({"forms": forms, "passes": len(rows)})
    live, tokens, context, seconds = np.array(rows, float).T
    predicted = Drafting(**forms["drafting"]["coefficients"]).predict(live, tokens, context)
    calibration_figure(live, tokens, seconds, predicted, forms["drafting"]["error"], Path(folder) / "latency.png")
    progress.note(f"latency model: {path}  (task.latency={path} of advise)")


def _check(config: RunConfig) -> None:
    task = config.task
    if not find_method(config.arm.method).keyed:
        raise UserError(f"arm={config.arm.name}: task=calibrate times passes that verify drafts; leave arm= out")
    if not (task.live and task.drafts and task.contexts):
        raise UserError("task.live, task.drafts, task.contexts: name one or more numbers for each")
    needed = _response(task)
    if config.trainer.max_completion_length < needed:
        raise UserError(
            f"trainer.max_completion_length={config.trainer.max_completion_length}: task.passes={task.passes} with "
            f"drafts of {max(task.drafts)} take up to {needed} tokens"
        )


def _response(task: Any) -> int:
    """The most tokens that a request takes beside its prompt while its passes are timed."""
    return 2 * (WARM_UP + int(task.passes)) + int(max(task.drafts))


def shaped_policy(config: RunConfig, name: str) -> str:
    """Make the folder of a policy of this shape, without weights: vLLM makes random ones. Returns the folder.

    name: the shape's name. Raises UserError if it is unknown.
    """
    shape = shape_of(name)
    dtype = config.engine.dtype
    return str(weightless_policy(name, shape.vocabulary or VOCABULARY, dtype, Path(config.cache) / "policies"))


def measure(config: RunConfig, task: Any, policy: str, progress: Progress) -> list[list[float]]:
    """Time the passes. Returns a row for each: live requests, tokens in the pass, tokens of context, seconds.

    task: the settings of this task.
    """
    prepare_process(config)
    from das.engine.build import build_engine

    made_up = {} if task.shape is None else {"load_format": "dummy", "skip_tokenizer_init": True}
    llm = build_engine(engine_settings(config, policy), max_num_seqs=max(task.live), **made_up)
    engine = llm.llm_engine
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.das_runner
    runner.flights.drafter.draft_round.drafter = RandomDrafter(engine.model_config.get_vocab_size())
    # Tokens of context -> prompts of that length. Key 0: the data's prompts, whose real contexts go into the rows.
    if task.shape is None:
        prompts = {0: [prompt for _, prompt in tokenized(config, policy)]}
    else:
        prompts = {length: made_up_prompts(length, max(task.live)) for length in task.contexts}
    cache = engine.vllm_config.cache_config
    combinations = []
    for live, context in product(task.live, prompts):
        blocks = live * (1 + (context + _response(task)) // cache.block_size)
        if blocks <= cache.num_gpu_blocks:
            combinations += [(live, drafts, context) for drafts in task.drafts]
        else:
            progress.note(f"left out: {live} requests of {context} tokens, which the KV cache does not hold")
    order = random.Random(0)
    rows: list[list[float]] = []
    for turn in range(task.rounds):
        order.shuffle(combinations)
        for live, drafts, context in combinations:
            of_live = [prompts[context][i % len(prompts[context])] for i in range(live)]
            name, most = f"{turn}-{live}-{drafts}", config.trainer.max_completion_length
            timed = timed_combination(engine, runner, of_live, drafts, name, most, int(task.passes))
            # Contexts grow by a few tokens while passes are timed. The rows keep the nominal length, an axis of tables.
            rows += [[n, tokens, live * context if context else grown, s] for n, tokens, grown, s in timed]
        progress.note(f"round {turn + 1} of {task.rounds}: {len(rows)} passes")
    return rows
