"""Workloads of sizes that no trace has, made of recorded responses.

A problem's responses are its recorded ones, in random order, each once; when more are needed, they come again, changed.
A changed response is a walk: it begins like a recorded one, has its length, and copies runs of tokens; after each run
it goes on at another place of the problem's responses that follows the same token. So every two tokens in a row are
recorded ones. Runs are uneven, most short and a few very long (log-normal, `SPREAD`), as in recorded text; budgets that
draft only what is likely live on the long ones. Long responses have shorter runs (`SLOPE`). The mean, `run`, is fitted
so that the drafter gets as many tokens per pass out of changed responses as out of recorded ones, with fixed drafts:
the recorded workload against the same with every second response changed, made of the others and as long as the one
whose place it takes.

Lengths are those of the recorded responses (bootstrap); `stretch` multiplies them all, `most` cuts them.

A synthetic problem is a recorded one under other token ids, so that it shares nothing with its doubles; the first of
each keeps its ids, and shares what recorded problems share.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from das.replay.workload import Workload, workload

# Standard deviation of the logarithm of a run's length. Of 0.5, 1, 1.5 and 2, for all traces alike, 1 and 1.5 come
# within 2.5 % of what the `marginal` budget gets out of recorded text when fixed drafts get the same (docs/notes).
SPREAD = 1.0
# Long responses repeat others less: a response's mean run falls with this power of its length over its problem's mean.
# Of 0, 0.3 and 0.6, 0.3 brings the time of three traces within 5 %, with fixed drafts (docs/notes).
SLOPE = 0.3


@dataclass(frozen=True)
class _Source:
    """A recorded problem: its responses one after the other, and places that look alike."""

    tokens: np.ndarray
    begins: np.ndarray  # where each response begins
    lengths: np.ndarray
    ends: np.ndarray  # bool: the last token of a response
    order: np.ndarray  # places sorted by their token, without the ends of responses
    first: np.ndarray  # of each place: where its like begin in `order`, and how many they are
    count: np.ndarray

    def other(self, at: np.ndarray, choice: np.ndarray) -> np.ndarray:
        """A place like each of `at` (any place, where there is none); choice: uniform in [0, 1)."""
        pick = self.first[at] + (choice * self.count[at]).astype(np.int64)
        anywhere = (choice * len(self.order)).astype(np.int64)
        return self.order[np.where(self.count[at] > 0, pick, anywhere)]


def _source(responses: list[np.ndarray]) -> _Source:
    lengths = np.array([len(response) for response in responses])
    tokens = np.concatenate(responses)
    stops = np.cumsum(lengths)
    ends = np.zeros(len(tokens), bool)
    ends[stops - 1] = True
    order = np.argsort(tokens, kind="stable")
    order = order[~ends[order]]
    first = np.searchsorted(tokens[order], tokens, side="left")
    count = np.searchsorted(tokens[order], tokens, side="right") - first
    return _Source(tokens, stops - lengths, lengths, ends, order, first, count)


def run_ends(total: int, run: float, random: np.random.Generator) -> np.ndarray:
    """bool [total]: the last token of each run, in a text of `total` tokens. A run has ceil(x) tokens, where x is
    log-normal with mean run - 1/2."""
    scale = (run - 0.5) / np.exp(SPREAD**2 / 2)
    last = np.zeros(total, bool)
    at = 0
    while at < total:
        runs = np.ceil(scale * np.exp(SPREAD * random.standard_normal(int(total / run) + 1)))
        ends = at + np.cumsum(runs.astype(np.int64))
        last[ends[ends <= total] - 1] = True
        at = int(ends[-1])
    return last


class Synthesis:
    """run: mean tokens in a row that a changed response copies (about: run_ends)."""

    def __init__(self, recorded: Workload, run: float) -> None:
        if run < 1:
            raise ValueError(f"a changed response copies at least 1 token in a row, got {run}")
        if recorded.lengths.max() < 2:
            raise ValueError("responses of one token say nothing about text")
        self.run = run
        self.vocabulary = int(recorded.tokens.max()) + 1
        members: dict[str, list[np.ndarray]] = {}
        for i, problem in enumerate(recorded.problems):
            members.setdefault(problem, []).append(recorded.response(i))
        self._sources = [_source(responses) for responses in members.values()]

    def make(self, problems: int, group: int, most: int, seed: int, stretch: float = 1.0, prompt: int = 0) -> Workload:
        """`problems` problems with `group` responses each, of at most `most` tokens; a problem's are in a row."""
        if min(problems, group, most) < 1 or stretch <= 0:
            raise ValueError("problems, group, most and stretch must be positive")
        random = np.random.default_rng(seed)
        names, texts = [], []
        for problem in range(problems):
            source = self._sources[problem % len(self._sources)]
            own_ids = problem // len(self._sources) * self.vocabulary
            recorded = len(source.begins)
            homes = np.concatenate([random.permutation(recorded) for _ in range(-(-group // recorded))])[:group]
            lengths = np.clip(np.round(stretch * source.lengths[homes]), 1, most).astype(np.int64)
            texts += [text + own_ids for text in self._texts(source, homes, lengths, random)]
            names += [f"synthetic-{problem}"] * group
        return workload(names, texts, prompt)

    def _texts(
        self, source: _Source, homes: np.ndarray, lengths: np.ndarray, random: np.random.Generator
    ) -> list[np.ndarray]:
        """A text for each home; texts that are not just recorded ones are made side by side."""
        begins, own = source.begins[homes], source.lengths[homes]
        again = np.arange(len(homes)) >= len(source.begins)
        texts = [source.tokens[b : b + n] for b, n in zip(begins.tolist(), lengths.tolist(), strict=True)]
        made = np.flatnonzero(again | (lengths > own))
        if not len(made):
            return texts
        walks = _walk(source, begins[made], lengths[made], again[made], self.run, random)
        for i, text in zip(made.tolist(), walks, strict=True):
            texts[i] = text
        return texts


def _walk(
    source: _Source,
    begins: np.ndarray,
    lengths: np.ndarray,
    leaves: np.ndarray,
    run: float,
    random: np.random.Generator,
) -> list[np.ndarray]:
    """Texts of these lengths that begin at these places; `leaves`: which go elsewhere after each run, not only where a
    recorded response ends. run: of one as long as the source's mean."""
    count, longest = len(begins), int(lengths.max())
    runs = np.maximum(1.0, run * (lengths / source.lengths.mean()) ** -SLOPE)
    leaving = np.stack([run_ends(longest, mine, random) for mine in runs.tolist()], axis=1) & leaves
    choice = random.random((longest, count))
    out = np.empty((longest, count), np.int32)
    at = begins
    for t in range(longest):
        out[t] = source.tokens[at]
        go = leaving[t] | source.ends[at]
        at = np.where(go, source.other(at, choice[t]), at) + 1 if go.any() else at + 1
    return [out[:length, column] for column, length in enumerate(lengths.tolist())]


def half_changed(recorded: Workload, run: float, seed: int) -> Workload:
    """The recorded workload with every second response of a problem changed: as long as it was, made of the others."""
    random = np.random.default_rng(seed)
    members: dict[str, list[int]] = {}
    for i, problem in enumerate(recorded.problems):
        members.setdefault(problem, []).append(i)
    texts = [recorded.response(i) for i in range(len(recorded))]
    for ids in members.values():
        kept, changed = ids[::2], ids[1::2]
        if not changed:
            raise ValueError("a problem with one response has no other to be made of")
        source = _source([texts[i] for i in kept])
        begins = source.begins[random.integers(len(kept), size=len(changed))]
        made = _walk(source, begins, recorded.lengths[changed], np.ones(len(changed), bool), run, random)
        for i, text in zip(changed, made, strict=True):
            texts[i] = text
    return workload(recorded.problems, texts, recorded.prompt)


def fitted_run(recorded: Workload, tokens_per_pass: Callable[[Workload], float], seed: int, rounds: int = 6) -> float:
    """The `run` at which the recorded workload with half of its responses changed takes as many tokens per pass.

    tokens_per_pass: of a workload, by replay. Bisection on a logarithmic scale, 1 to 64 tokens.
    """
    goal = tokens_per_pass(recorded)
    low, high = 1.0, 64.0
    for _ in range(rounds):
        middle = float(np.sqrt(low * high))
        if tokens_per_pass(half_changed(recorded, middle, seed)) < goal:
            low = middle
        else:
            high = middle
    return float(np.sqrt(low * high))
