"""task=bench_dispatch: what placing requests costs the driver, in processor time.

A rollout's calls to the Dispatcher: every engine joins and takes, then each in turn finishes a response and takes
again. With fewer slots than requests, the queue is used.

result.json: cases: rows of engines, slots, requests, first_ms (until every engine has its first requests), all_ms.
"""

import time
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from das.cluster.dispatcher import Dispatcher, Request
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Time each case, print a line for it, write result.json."""
    task = config.task
    at_least_one(task, "batch", "group", "engines", "repeats")
    if min(task.max_num_seqs, default=0) < 1:
        raise UserError(f"task.max_num_seqs={list(task.max_num_seqs)}: an engine decodes at least 1 request at once")
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    cases = []
    for slots in task.max_num_seqs:
        timed = [dispatch(int(task.batch), int(task.group), int(task.engines), int(slots)) for _ in range(task.repeats)]
        first_ms, all_ms = np.median(timed, axis=0).tolist()
        case = {
            "engines": int(task.engines),
            "slots": int(slots),
            "requests": int(task.batch) * int(task.group),
            "first_ms": first_ms,
            "all_ms": all_ms,
        }
        cases.append(case)
        progress.note(
            "{requests} requests, {engines} engines x {slots} slots: first requests {first_ms:.1f} ms, "
            "all {all_ms:.1f} ms".format(**case)
        )
    progress.note(f"result: {run_folder.write_result({'cases': cases})}")


def dispatch(batch: int, group: int, engines: int, slots: int) -> tuple[float, float]:
    """Processor time in ms until all engines have taken, and of the whole rollout."""
    random = np.random.default_rng(0)
    predicted = random.integers(100, 16384, (batch, group)).astype(float).tolist()
    requests = [Request(p * group + g, str(p), predicted[p][g]) for p in range(batch) for g in range(group)]
    order = random.permutation(engines).tolist()
    began = time.process_time()
    dispatcher = Dispatcher(requests)
    for engine in range(engines):
        dispatcher.joined(engine, slots)
    for engine in range(engines):
        dispatcher.take(engine)
    first = time.process_time() - began
    while not dispatcher.done:
        for engine in order:
            held = dispatcher.held(engine)
            if held:
                dispatcher.finished(engine, held[0])
                dispatcher.take(engine)
    return 1e3 * first, 1e3 * (time.process_time() - began)
