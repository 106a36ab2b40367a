"""task=bench_drafter: compare the history drafter with the suffix trees of arctic-inference, and with a suffix array.

result.json: traces.NAME.{das,arctic}.{tokens_per_pass, by_epoch, drafted_per_pass, accept_rate, query_us_per_request,
update_us_per_token}, traces.NAME.ratio.* (das / arctic); array: ms of a query and of an insertion, by indexed tokens
(DAS Fig 5). Times of traces are processor times of this thread.
"""

import bisect
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from das.drafter import Draft, HistoryDrafter
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig
from experiments.simulate.rollouts import responses_of
from experiments.simulate.workload import Problems, made_up_problems

MIN_PROB, WINDOW = 0.005, 1000  # of the history drafter; arctic forgets nothing
DEPTH = 64  # of arctic: the longest match, in tokens
PROMPT = np.arange(100, dtype=np.int32) + 10**6  # stands for all prompts, which traces do not hold


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Replay every trace with both drafters, then time the index against the array. Writes result.json."""
    task, progress = config.task, Progress(0)
    run_folder = RunFolder(Path(folder), config.resolved)
    traces: dict[str, Problems] = {}
    for path in map(Path, task.traces):
        if not path.exists():
            raise UserError(f"task.traces: {path} does not exist")
        traces[path.name.split(".")[0]] = list(responses_of(path).items())[: task.problems]
    traces = traces or {"generated": made_up_problems(min(task.problems, 6), 4 * task.group, 1000, config.seed)}
    drafters: dict[str, Callable[[], Any]] = {"das": Das}
    if find_spec("arctic_inference") is None:
        progress.note("arctic-inference is not installed (make peers): only das is measured")
    else:
        drafters["arctic"] = Arctic
    result: dict[str, Any] = {"traces": {}}
    for name, problems in traces.items():
        if max(len(responses) for _, responses in problems) < task.group:
            raise UserError(f"task.traces: no problem of {name} has task.group={task.group} responses: lower it")
        row = {which: replay(problems, new(), task.group, task.tokens) for which, new in drafters.items()}
        if "arctic" in row:
            numbers = [key for key, value in row["das"].items() if isinstance(value, float)]
            row["ratio"] = {key: row["das"][key] / row["arctic"][key] for key in numbers}
        for which, found in row.items():
            progress.note(f"{name} {which}: " + "  ".join(f"{k} {v:.4g}" for k, v in found.items() if k != "by_epoch"))
        result["traces"][name] = row
    result["array"] = [against_array(tokens) for tokens in task.array_sizes]
    progress.note(f"result: {run_folder.write_result(result)}")


class Das(HistoryDrafter):
    """This project's drafter. Its history remembers tokens only."""

    contexts: list[np.ndarray]  # of the requests that are asked for; replay sets them for drafters that need them

    def __init__(self) -> None:
        super().__init__(remember="tokens", min_prob=MIN_PROB, window=WINDOW)


class Arctic:
    """arctic-inference's suffix trees, with its defaults: one tree for each problem, shared by siblings. It takes the
    calls of Das, and forgets nothing."""

    contexts: list[np.ndarray]
    history_tick = 0

    def __init__(self) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.of_problem: dict[str, Any] = defaultdict(lambda: SuffixDecodingCache(max_tree_depth=DEPTH))
        self.of_request: dict[str, Any] = {}

    def begin(self, request: str, problem: str, prompt: np.ndarray) -> None:
        self.of_request[request] = self.of_problem[problem]
        self.of_request[request].start_request(request, prompt)

    def propose(self, requests: list[str], limits: list[int]) -> Iterable[Draft]:
        options = {"max_spec_factor": 2.0, "min_token_prob": 0.1}
        for request, context, limit in zip(requests, self.contexts, limits, strict=True):
            draft = self.of_request[request].speculate(request, context[-DEPTH:], max_spec_tokens=limit, **options)
            yield Draft(draft.token_ids, draft.probs)

    def observe_batch(self, requests: list[str], tokens: list[np.ndarray]) -> None:
        for request, new in zip(requests, tokens, strict=True):
            self.of_request[request].add_active_response(request, new)

    def end(self, request: str) -> None:
        self.of_request[request].stop_request(request)

    def move_window(self, tick: int) -> None: ...


def replay(problems: Problems, drafter: Any, group: int, limit: int) -> dict[str, Any]:
    """Decode recorded responses with a drafter. Each epoch of a problem decodes its next `group` responses in lock
    step; a drafted token is accepted if it is the recorded one. limit: tokens of the longest draft."""
    by_epoch: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # tokens, passes
    drafted = accepted = queries = 0
    query_s = update_s = 0.0
    for problem, responses in problems:
        for epoch in range(len(responses) // group):
            texts = [np.concatenate([PROMPT, r]) for r in responses[epoch * group : (epoch + 1) * group]]
            names = [f"{problem}/{epoch}/{i}" for i in range(group)]
            at = [len(PROMPT)] * group  # how many tokens of each text are decoded
            for name in names:
                drafter.begin(name, problem, PROMPT)
            live, drafts = list(range(group)), [Draft([], [])] * group  # the first pass of a response has no draft
            while live:
                emitted = []
                for i, draft in zip(live, drafts, strict=True):
                    coming = texts[i][at[i] : at[i] + len(draft.tokens) + 1]
                    right = num_right(draft.tokens, coming.tolist())
                    emitted.append(coming[: right + 1])
                    at[i] += len(emitted[-1])
                    by_epoch[epoch][0] += len(emitted[-1])
                    by_epoch[epoch][1] += 1
                    drafted, accepted = drafted + len(draft.tokens), accepted + right
                start = time.thread_time()
                drafter.observe_batch([names[i] for i in live], emitted)
                update_s += time.thread_time() - start
                for i in [i for i in live if at[i] == len(texts[i])]:
                    drafter.end(names[i])
                    live.remove(i)
                requests, drafter.contexts = [names[i] for i in live], [texts[i][: at[i]] for i in live]
                start = time.thread_time()
                drafts = list(drafter.propose(requests, [limit] * len(live))) if live else []
                query_s += time.thread_time() - start
                queries += len(live)
            drafter.move_window(drafter.history_tick + 1)
    tokens, passes = np.sum(list(by_epoch.values()), axis=0).tolist()
    return {
        "tokens_per_pass": tokens / passes,
        "by_epoch": [t / p for _, (t, p) in sorted(by_epoch.items())],
        "drafted_per_pass": drafted / passes,
        "accept_rate": accepted / max(drafted, 1),
        "query_us_per_request": query_s / max(queries, 1) * 1e6,
        "update_us_per_token": update_s / tokens * 1e6,
    }


def num_right(drafted: Sequence[int], coming: Sequence[int]) -> int:
    """Return how many drafted tokens equal the recorded ones that come, up to the first wrong one."""
    same = [mine == its for mine, its in zip(drafted, coming, strict=False)]
    return same.index(False) if False in same else len(same)


# ---- a suffix array, with which Fig 5 of the DAS paper compares its suffix tree ----


def against_array(tokens: int) -> dict[str, float]:
    """Time a query and the insertion of 100 tokens, in our drafter's index and in a suffix array, which cannot grow, so
    an insertion sorts it anew. Returns milliseconds, and the size of the corpus."""
    (_, texts), *_ = made_up_problems(1, max(2, tokens // 1000), min(1000, tokens // 2), 1)
    corpus = np.concatenate(texts)
    drafter = HistoryDrafter(cross_problem_tokens=0, min_prob=MIN_PROB, remember="tokens")
    drafter.begin("past", "p", [])
    drafter.observe("past", corpus)
    drafter.begin("live", "p", [])

    def ms(times: int, action: Callable[[int], object]) -> float:
        start = time.perf_counter()
        for i in range(times):
            action(i)
        return (time.perf_counter() - start) * 1e3

    inserted = ms(20, lambda i: drafter.observe("live", texts[0][5 * i : 5 * i + 5]))
    query = ms(100, lambda i: drafter.propose(["live"], [16])) / 100
    sort = ms(1, lambda i: suffix_array(corpus))
    order = suffix_array(corpus)
    array_query = ms(100, lambda i: array_draft(corpus, order, texts[0][: 100 + i], 16)) / 100
    return {
        "tokens": len(corpus),
        "query_ms": query,
        "insert_100_ms": inserted,
        "array_query_ms": array_query,
        "array_sort_ms": sort,
    }


def array_draft(text: np.ndarray, order: np.ndarray, context: np.ndarray, tokens: int) -> np.ndarray:
    """Make a draft: find the longest suffix of the context that occurs in the text, and append the token that most
    often follows it there, again and again. order: the suffix array of `text`. tokens: the most tokens of a draft."""
    longest, shortest = 24, 0
    while shortest < longest:  # bisection works because every suffix of a match is a match too
        middle = (shortest + longest + 1) // 2
        first, last = matches(text, order, context[len(context) - middle :])
        shortest, longest = (middle, longest) if last > first else (shortest, middle - 1)
    pattern = context[len(context) - shortest :]
    draft: list[int] = []
    for _ in range(tokens):
        first, last = matches(text, order, np.append(pattern, draft).astype(text.dtype))
        after = order[first:last] + len(pattern) + len(draft)
        after = text[after[after < len(text)]]
        if not len(after):
            break
        values, counts = np.unique(after, return_counts=True)
        draft.append(int(values[counts.argmax()]))
    return np.array(draft, text.dtype)


def matches(text: np.ndarray, order: np.ndarray, pattern: np.ndarray) -> tuple[int, int]:
    """Return the range (first, last + 1) of the suffix array in which suffixes begin with the pattern."""
    tokens, length = pattern.tolist(), len(pattern)
    first = bisect.bisect_left(order, tokens, key=lambda at: text[at : at + length].tolist())
    last = bisect.bisect_right(order, tokens, lo=first, key=lambda at: text[at : at + length].tolist())
    return first, last


def suffix_array(text: np.ndarray) -> np.ndarray:
    """Return the positions at which the suffixes of a text begin, sorted by suffix, by prefix doubling."""
    rank = np.unique(text, return_inverse=True)[1].astype(np.int64)
    n, k = len(text), 1
    while True:
        after = np.full(n, -1, np.int64)
        after[:-k] = rank[k:]
        order = np.lexsort((after, rank))
        new_rank = np.zeros(n, np.int64)
        new_rank[order[1:]] = np.cumsum((np.diff(rank[order]) != 0) | (np.diff(after[order]) != 0))
        rank, k = new_rank, 2 * k
        if rank.max() == n - 1 or k >= n:
            return order
