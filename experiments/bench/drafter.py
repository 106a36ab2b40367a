"""task=bench_drafter: compare the history drafter with the suffix trees of arctic-inference, in one process.

result.json: traces.NAME.{das,arctic}.{tokens_per_pass, by_epoch, drafted_per_pass, accept_rate, query_us_per_request,
update_us_per_token, build_us_per_token, evict_us_per_trajectory, bytes_per_token, ...}, traces.NAME.ratio.*;
traces.NAME.distributions: as das, with a history that remembers distributions, if a run of das recorded the trace with
them; batches: cost of a query by batch size; sizes: cost and memory by indexed tokens; array: comparison to a suffix
array.
"""

import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from analysis.task_figures import drafter_figure
from das.drafter import HistoryDrafter
from experiments.recorded.drafter_replay import (
    Arctic,
    Das,
    DasDistributions,
    Problems,
    Recorded,
    ReplayedDrafter,
    Tally,
    has_arctic,
    made_up_problems,
    replay_problem,
    request_name,
)
from experiments.recorded.suffix_array import against_array
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.config import RunConfig
from experiments.simulate.rollouts import sampled_responses_of

# Times are medians over repeated runs. Everything else does not depend on the clock and is equal in every run.
TIMES = ("query_us_per_request", "update_us_per_token", "build_us_per_token", "evict_us_per_trajectory")
MIN_PROB = 0.005  # for the measurements without a trace; earlier records were measured with this value


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Measure costs by size and batch, and replay every trace with both drafters. Writes result.json and a figure."""
    task = config.task
    for path in task.traces:
        if not Path(path).exists():  # checked now, because traces are read after minutes of measurements
            raise UserError(f"task.traces: {path} does not exist")
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config.resolved)
    result: dict[str, Any] = {"arctic": has_arctic(), "traces": {}}
    # This comes first, because the index could take memory that other measurements have freed, and so look too small.
    result["sizes"] = [cost_by_size(int(tokens)) for tokens in task.sizes]
    for row in result["sizes"]:
        progress.note("  ".join(f"{key} {value:.4g}" for key, value in row.items()))
    if not result["arctic"]:
        progress.note("arctic-inference is not installed (make peers): only das is measured")
    traces: dict[str, Problems] = {}
    recorded: dict[str, Recorded] = {}
    for path in task.traces:
        name = Path(path).name.split(".")[0]
        responses = dict(list(sampled_responses_of(Path(path)).items())[: task.problems])
        traces[name] = [(problem, [tokens for tokens, _ in rows]) for problem, rows in responses.items()]
        recorded[name] = {
            request_name(problem, int(task.group), i): (tokens, sampling)
            for problem, rows in responses.items()
            for i, (tokens, sampling) in enumerate(rows)
            if sampling is not None
        }
    for name, problems in traces.items():
        if max(len(responses) for _, responses in problems) < task.group:
            raise UserError(f"task.traces: no problem of {name} has task.group={task.group} responses: lower it")
    traces = traces or {"generated": made_up_problems(min(task.problems, 6), 4 * task.group, 1000, config.seed)}
    for name, problems in traces.items():
        result["traces"][name] = bench_trace(problems, task, progress, name, recorded.get(name, {}))
    result["batches"] = cost_by_batch(next(iter(traces.values())), task)
    progress.note(
        "query, us per request, by batch: " + ", ".join(f"{b}: {u:.1f}" for b, u in result["batches"].items())
    )
    result["array"] = [against_array(int(tokens)) for tokens in task.array_sizes]
    drafter_figure(result, Path(folder) / "drafter.png")
    progress.note(f"figure: {folder}/drafter.png")
    progress.note(f"result: {run_folder.write_result(result)}")


def arms_of(task: Any, problems: Problems, recorded: Recorded) -> dict[str, Callable[[], ReplayedDrafter]]:
    """Return the drafters that take turns, problem by problem: name -> what makes a new one.

    Arctic is among them only if it is installed, and the drafter that remembers distributions only if all responses
    were recorded with theirs.
    """
    options = {"min_prob": task.min_prob, "window": task.window}
    arms: dict[str, Callable[[], ReplayedDrafter]] = {"das": partial(Das, **options)}
    if len(recorded) == sum(len(responses) for _, responses in problems):
        arms["distributions"] = partial(DasDistributions, recorded, **options)
    if has_arctic():
        arms["arctic"] = partial(Arctic, task.depth)
    return arms


def replay(problems: Problems, task: Any, arms: dict[str, Callable[[], ReplayedDrafter]]) -> dict[str, dict[str, Any]]:
    """Replay a trace with a new drafter of each arm; they take turns, problem by problem. Returns arm -> summary."""
    drafters = {name: make() for name, make in arms.items()}
    tallies = {name: Tally() for name in arms}
    for problem, responses in problems:
        for name, drafter in drafters.items():
            replay_problem(problem, responses, drafter, task.group, task.tokens, tallies[name])
    return {name: tally.summary() for name, tally in tallies.items()}


def bench_trace(problems: Problems, task: Any, progress: Progress, name: str, recorded: Recorded) -> dict[str, Any]:
    """Measure one trace: replays with all drafters, and the cost of building a history and of evicting it."""
    arms = arms_of(task, problems, recorded)
    runs: dict[str, list[dict[str, Any]]] = {which: [] for which in arms}
    for _ in range(task.runs):
        for which, summary in replay(problems, task, arms).items():
            costs = HISTORY_COSTS[which](problems, task) if which in HISTORY_COSTS else {}
            runs[which].append({**summary, **costs})
    row: dict[str, Any] = {
        w: {**r[0], **{k: median(x[k] for x in r) for k in TIMES if k in r[0]}} for w, r in runs.items()
    }
    if "arctic" in row:
        row["ratio"] = {
            key: row["das"][key] / row["arctic"][key]
            for key in ("tokens_per_pass", "drafted_per_pass", "bytes_per_token", *TIMES)
        }
    for which, values in row.items():
        numbers = "  ".join(f"{k} {v:.4g}" for k, v in values.items() if isinstance(v, float))
        progress.note(f"{name} {which}: {numbers}")
    return row


# ---- cost of history ----


def das_history_costs(problems: Problems, task: Any) -> dict[str, float]:
    """Measure the cost of indexing all responses, and of evicting them later. Nothing is copied for other problems."""
    drafter = HistoryDrafter(cross_problem_tokens=0, window=1, remember="tokens")
    tokens = trajectories = 0
    start = time.perf_counter()
    for problem, responses in problems:
        for response in responses:
            drafter.begin("r", problem, [])
            drafter.observe("r", response)
            drafter.end("r")
            tokens += len(response)
            trajectories += 1
    built = time.perf_counter()
    index_bytes = drafter.index_bytes
    drafter.end_step(1)
    evicted = time.perf_counter()
    return {
        "build_us_per_token": (built - start) / tokens * 1e6,
        "evict_us_per_trajectory": (evicted - built) / trajectories * 1e6,
        "bytes_per_token": index_bytes / tokens,
    }


def arctic_history_costs(problems: Problems, task: Any) -> dict[str, float]:
    """Measure the same for arctic's suffix trees as das_history_costs. The memory is an estimate by arctic itself."""
    from arctic_inference.suffix_decoding._C import SuffixTree

    tokens = trajectories = tree_bytes = 0
    build = evict = 0.0
    for _, responses in problems:
        start = time.perf_counter()
        tree = SuffixTree(task.depth)
        for i, response in enumerate(responses):
            tree.extend_ndarray(i, response)
            tokens += len(response)
            trajectories += 1
        build += time.perf_counter() - start
        tree_bytes += tree.estimate_memory()
        start = time.perf_counter()
        for i in range(len(responses)):
            tree.remove(i)
        evict += time.perf_counter() - start
    return {
        "build_us_per_token": build / tokens * 1e6,
        "evict_us_per_trajectory": evict / trajectories * 1e6,
        "bytes_per_token": tree_bytes / tokens,
    }


HISTORY_COSTS: dict[str, Callable[[Problems, Any], dict[str, float]]] = {
    "das": das_history_costs,
    "arctic": arctic_history_costs,
}


def cost_by_batch(problems: Problems, task: Any) -> dict[str, float]:
    """Return batch size -> processor time per request, in us of this thread, for the query that the engine makes.

    Requests of all problems decode at once. Each problem has one group of responses as its history.
    """
    costs = {}
    for batch in task.batches:
        drafter = HistoryDrafter(min_prob=task.min_prob, remember="tokens")
        texts: dict[str, np.ndarray] = {}
        for i in range(batch):
            problem, responses = problems[i % len(problems)]
            if i < len(problems):
                for past in responses[-task.group :]:
                    drafter.begin("past", problem, [])
                    drafter.observe("past", past)
                    drafter.end("past")
            texts[f"{i}"] = responses[i // len(problems) % max(1, len(responses) - task.group)]
        drafter.end_step(1)
        names = list(texts)
        for name in names:
            drafter.begin(name, problems[int(name) % len(problems)][0], [])
        rounds = min(400, max(40, 6400 // batch))
        spent = 0.0
        for step in range(rounds):
            drafter.observe_batch(names, [texts[name][3 * step : 3 * step + 3] for name in names])
            start = time.thread_time()
            drafter.propose_batch(names, [task.tokens] * batch)
            spent += time.thread_time() - start
        costs[str(batch)] = spent / rounds / batch * 1e6
    return costs


def cost_by_size(tokens: int) -> dict[str, float]:
    """Return the costs and the memory of an index of `tokens` made-up tokens. Each problem has 100 responses of 1000
    tokens."""
    (_, texts), *_ = made_up_problems(1, 100, min(1000, tokens // 100), 0)
    drafter = HistoryDrafter(window=2, min_prob=MIN_PROB, remember="tokens")
    resident_before = resident_bytes()
    start = time.perf_counter()
    for problem in range(tokens // (100 * len(texts[0]))):
        for text in texts:
            drafter.begin("r", f"{problem}", [])
            drafter.observe("r", text)
            drafter.end("r")
    build = time.perf_counter() - start
    drafter.begin("live", "0", [])
    query = update = 0.0
    for at in range(0, 900, 3):
        start = time.perf_counter()
        drafter.observe("live", texts[0][at : at + 3])
        middle = time.perf_counter()
        drafter.propose(["live"], [16])
        update += middle - start
        query += time.perf_counter() - middle
    indexed = drafter.history_tokens
    return {
        "tokens": indexed,
        "build_us_per_token": build / indexed * 1e6,
        "update_us_per_token": update / 900 * 1e6,
        "query_us_per_request": query / 300 * 1e6,
        "bytes_per_token": drafter.index_bytes / indexed,
        "resident_bytes_per_token": max(0.0, resident_bytes() - resident_before) / indexed,
    }


def resident_bytes() -> float:
    """Return the bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * resource.getpagesize())
