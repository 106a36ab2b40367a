"""Replaying recorded rollouts through a drafter: traces, drafters behind one interface, lock-step decoding."""

import gzip
import json
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from das.drafter import Draft, HistoryDrafter
from das.trajectory import token_array
from experiments.run.errors import UserError, reading

# A trace without token ids is cut like Qwen's tokenizer cuts before merging: words, single digits, punctuation, space.
WORDS = re.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\w]?[^\W\d_]+|\d| ?[^\s\w]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+|_")
PROMPT = np.arange(100, dtype=np.int32) + 10**6  # stands for every prompt: traces do not carry their token ids

Problems = list[tuple[str, list[np.ndarray]]]  # (problem, its responses in the order they were sampled)


def read_trace(path: Path, problems: int) -> Problems:
    """The first problems of a .jsonl.gz with problem_id, run, and response or response_ids; UserError if it is not."""
    words: dict[str, int] = {}
    kinds = set()
    found: dict[str, list[tuple[str, np.ndarray]]] = {}
    with reading(path), gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            if row["run"] in ("cleaned_0019_temp0", "data"):  # copies of other rows in one of the traces
                continue
            if row["problem_id"] not in found and len(found) == problems:
                continue
            ids = row.get("response_ids")
            kinds.add(ids is None)
            if ids is None:
                ids = [words.setdefault(word, len(words)) for word in WORDS.findall(row["response"])]
            found.setdefault(row["problem_id"], []).append((str(row["run"]), token_array(ids)))
    if not any(len(ids) for rows in found.values() for _, ids in rows):
        raise UserError(f"{path} is empty: a row a response is needed")
    if len(kinds) > 1:
        raise UserError(f"{path} mixes token ids and text: all responses must be cut by one tokeniser")
    return [(p, [ids for _, ids in sorted(rows, key=lambda row: row[0])]) for p, rows in found.items()]


def generated(problems: int, responses: int, length: int, seed: int) -> Problems:
    """Stand-in for a trace: responses of a problem share phrases, and go their own way now and then."""
    rng = np.random.default_rng(seed)
    made: Problems = []
    for problem in range(problems):
        phrases = [rng.zipf(1.3, rng.integers(4, 16)) % 5000 for _ in range(60)]
        texts = []
        for _ in range(responses):
            text: list[int] = []
            at = 0
            while len(text) < length:
                at = (at + 1) % 60 if rng.random() < 0.7 else int(rng.integers(60))
                phrase = phrases[at].copy()
                noisy = rng.random(len(phrase)) < 0.1
                phrase[noisy] = rng.integers(0, 5000, noisy.sum())
                text += phrase.tolist()
            texts.append(np.asarray(text[:length], np.int32))
        made.append((f"generated-{problem}", texts))
    return made


class Replayed(Protocol):
    """What the replay asks of a drafter."""

    def begin(self, request: str, problem: str) -> None: ...
    def propose(self, requests: list[str], contexts: list[np.ndarray], limit: int) -> list[Draft]: ...
    def observe(self, requests: list[str], tokens: list[np.ndarray]) -> None: ...
    def end(self, request: str) -> None: ...
    def end_epoch(self) -> None: ...


class Das:
    """This project's drafter, through its public methods."""

    def __init__(self, **options: Any) -> None:
        self.drafter = HistoryDrafter(**options)

    def begin(self, request: str, problem: str) -> None:
        self.drafter.begin(request, problem, PROMPT)

    def propose(self, requests: list[str], contexts: list[np.ndarray], limit: int) -> list[Draft]:
        return self.drafter.propose(requests, [limit] * len(requests))

    def observe(self, requests: list[str], tokens: list[np.ndarray]) -> None:
        self.drafter.observe_batch(requests, tokens)

    def end(self, request: str) -> None:
        self.drafter.end(request)

    def end_epoch(self) -> None:
        self.drafter.end_step(self.drafter.history_tick + 1)


class Arctic:
    """arctic-inference's suffix trees: one per problem, shared by siblings."""

    def __init__(self, depth: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.new, self.depth = SuffixDecodingCache, depth
        self.caches: dict[str, Any] = {}
        self.of: dict[str, Any] = {}

    def begin(self, request: str, problem: str) -> None:
        if problem not in self.caches:
            self.caches[problem] = self.new(max_tree_depth=self.depth)
        self.of[request] = self.caches[problem]
        self.of[request].start_request(request, PROMPT)

    def propose(self, requests: list[str], contexts: list[np.ndarray], limit: int) -> list[Draft]:
        drafts = []
        for request, context in zip(requests, contexts, strict=True):
            draft = self.of[request].speculate(
                request, context[-self.depth :], max_spec_tokens=limit, max_spec_factor=2.0, min_token_prob=0.1
            )
            drafts.append(Draft(draft.token_ids, draft.probs))
        return drafts

    def observe(self, requests: list[str], tokens: list[np.ndarray]) -> None:
        for request, new in zip(requests, tokens, strict=True):
            self.of[request].add_active_response(request, new)

    def end(self, request: str) -> None:
        self.of[request].stop_request(request)

    def end_epoch(self) -> None:
        pass


def has_arctic() -> bool:
    return find_spec("arctic_inference") is not None


@dataclass
class Tally:
    """Counts of a replay. by_epoch: epoch -> [tokens, passes]; bins: [20 probability bins][drafts, sum, accepted]."""

    by_epoch: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    drafted: int = 0
    accepted: int = 0
    queries: int = 0
    query_s: float = 0.0
    update_s: float = 0.0
    bins: np.ndarray = field(default_factory=lambda: np.zeros((20, 3)))

    def summary(self) -> dict[str, Any]:
        tokens, passes = np.sum(list(self.by_epoch.values()), axis=0).tolist()
        n, mean, hits = self.bins.T
        return {
            "tokens": tokens,
            "tokens_per_pass": tokens / passes,
            "by_epoch": [t / p for _, (t, p) in sorted(self.by_epoch.items())],
            "drafted_per_pass": self.drafted / passes,
            "accept_rate": self.accepted / max(self.drafted, 1),
            "query_us_per_request": self.query_s / max(self.queries, 1) * 1e6,
            "update_us_per_token": self.update_s / tokens * 1e6,
            "calibration_error": float(np.abs(mean - hits).sum() / max(n.sum(), 1)),
            "reliability": [[m / k, h / k, k] for k, m, h in zip(n, mean, hits, strict=True) if k],
        }


def replay(problem: str, responses: Sequence[np.ndarray], drafter: Replayed, group: int, limit: int, t: Tally) -> None:
    """A problem's groups decode in lock step, one group after the other, an epoch each; adds to `t`.

    A drafted token is accepted if it is the recorded one. The first token of a response has a pass of its own.
    """
    for epoch in range(len(responses) // group):
        texts = [np.concatenate([PROMPT, r]) for r in responses[epoch * group : (epoch + 1) * group]]
        names = [f"{problem}/{epoch}/{i}" for i in range(group)]
        at = [len(PROMPT)] * group
        for name in names:
            drafter.begin(name, problem)
        live = list(range(group))
        drafts = [Draft([], [])] * group
        while live:
            new = []
            for i, draft in zip(live, drafts, strict=True):
                coming = texts[i][at[i] : at[i] + len(draft.tokens) + 1].tolist()
                a = 0
                while a < min(len(draft.tokens), len(coming)) and draft.tokens[a] == coming[a]:
                    a += 1
                for j in range(min(a + 1, len(draft.tokens), len(coming))):
                    t.bins[min(19, int(draft.probs[j] * 20))] += (1, draft.probs[j], j < a)
                new.append(texts[i][at[i] : at[i] + a + 1])
                t.by_epoch[epoch][0] += len(new[-1])
                t.by_epoch[epoch][1] += 1
                t.drafted += len(draft.tokens)
                t.accepted += a
                at[i] += len(new[-1])
            start = time.perf_counter()
            drafter.observe([names[i] for i in live], new)
            t.update_s += time.perf_counter() - start
            for i in [i for i in live if at[i] == len(texts[i])]:
                drafter.end(names[i])
                live.remove(i)
            requests, contexts = [names[i] for i in live], [texts[i][: at[i]] for i in live]
            start = time.perf_counter()
            drafts = drafter.propose(requests, contexts, limit) if live else []
            t.query_s += time.perf_counter() - start
            t.queries += len(live)
        drafter.end_epoch()
