"""Replay recorded responses with a drafter. All drafters have one interface; a problem's responses advance together."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from das.drafter import Draft, HistoryDrafter
from experiments.simulate.workload import Sampling

PROMPT = np.arange(100, dtype=np.int32) + 10**6  # stands for all prompts, which traces do not hold

Problems = list[tuple[str, list[np.ndarray]]]  # (problem, its responses in the order they were sampled)
Recorded = Mapping[str, tuple[np.ndarray, Sampling]]  # by `request_name`: a response, and how it was sampled


def made_up_problems(problems: int, responses: int, length: int, seed: int) -> Problems:
    """Make a stand-in for a trace. Responses of a problem have `length` tokens and share phrases, in random order."""
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


class ReplayedDrafter(Protocol):
    """The interface of a drafter for `replay_problem`."""

    def begin(self, request: str, problem: str) -> None: ...
    def propose(self, requests: list[str], contexts: list[np.ndarray], limit: int) -> Iterable[Draft]: ...
    def observe(self, requests: list[str], tokens: list[np.ndarray]) -> None: ...
    def end(self, request: str) -> None: ...
    def end_epoch(self) -> None: ...


class Das:
    """This project's drafter, through its public methods. Its history remembers tokens only."""

    def __init__(self, *, remember: str = "tokens", **options: Any) -> None:
        self.drafter = HistoryDrafter(remember=remember, **options)

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


class DasDistributions(Das):
    """This project's drafter, which remembers the distributions with which responses were recorded."""

    def __init__(self, recorded: Recorded, **options: Any) -> None:
        super().__init__(remember="distributions", **options)
        self._recorded = recorded
        self._coming: dict[str, np.ndarray] = {}  # by request: the distributions of its next tokens

    def begin(self, request: str, problem: str) -> None:
        response, sampling = self._recorded[request]
        self._coming[request] = sampling.distributions.rows(response)
        self.drafter.begin(request, problem, PROMPT, sampling.seed)

    def observe(self, requests: list[str], tokens: list[np.ndarray]) -> None:
        rows = []
        for request, new in zip(requests, tokens, strict=True):
            coming = self._coming[request]
            rows.append(coming[: len(new)])
            self._coming[request] = coming[len(new) :]
        self.drafter.observe_batch(requests, tokens, np.concatenate(rows))


class Arctic:
    """arctic-inference's suffix trees: one tree per problem, shared by its siblings.

    depth: tokens of the longest match.
    """

    def __init__(self, depth: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.new_cache, self.depth = SuffixDecodingCache, depth
        self.cache_of_problem: dict[str, Any] = {}
        self.cache_of_request: dict[str, Any] = {}

    def begin(self, request: str, problem: str) -> None:
        if problem not in self.cache_of_problem:
            self.cache_of_problem[problem] = self.new_cache(max_tree_depth=self.depth)
        self.cache_of_request[request] = self.cache_of_problem[problem]
        self.cache_of_request[request].start_request(request, PROMPT)

    def propose(self, requests: list[str], contexts: list[np.ndarray], limit: int) -> list[Draft]:
        drafts = []
        for request, context in zip(requests, contexts, strict=True):
            draft = self.cache_of_request[request].speculate(
                request,
                context[-self.depth :],
                max_spec_tokens=limit,
                max_spec_factor=2.0,  # both by default
                min_token_prob=0.1,
            )
            drafts.append(Draft(draft.token_ids, draft.probs))
        return drafts

    def observe(self, requests: list[str], tokens: list[np.ndarray]) -> None:
        for request, new in zip(requests, tokens, strict=True):
            self.cache_of_request[request].add_active_response(request, new)

    def end(self, request: str) -> None:
        self.cache_of_request[request].stop_request(request)

    def end_epoch(self) -> None:
        pass


def has_arctic() -> bool:
    """Return whether arctic-inference is installed (by `make peers`)."""
    return find_spec("arctic_inference") is not None


@dataclass
class Tally:
    """Counts of passes and of drafted and accepted tokens in a replay.

    by_epoch: epoch -> [tokens, passes].
    bins: [20 bins of estimated probability, 3]: drafted tokens, sum of their estimates, accepted tokens.
    """

    by_epoch: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    num_drafted: int = 0
    num_accepted: int = 0
    queries: int = 0
    query_s: float = 0.0
    update_s: float = 0.0
    bins: np.ndarray = field(default_factory=lambda: np.zeros((20, 3)))

    def summary(self) -> dict[str, Any]:
        tokens, passes = np.sum(list(self.by_epoch.values()), axis=0).tolist()
        drafted, estimated, accepted = self.bins.T
        return {
            "tokens": tokens,
            "tokens_per_pass": tokens / passes,
            "by_epoch": [t / p for _, (t, p) in sorted(self.by_epoch.items())],
            "drafted_per_pass": self.num_drafted / passes,
            "accept_rate": self.num_accepted / max(self.num_drafted, 1),
            "query_us_per_request": self.query_s / max(self.queries, 1) * 1e6,
            "update_us_per_token": self.update_s / tokens * 1e6,
            "calibration_error": float(np.abs(estimated - accepted).sum() / max(drafted.sum(), 1)),
            "reliability": [[e / d, a / d, d] for d, e, a in zip(drafted, estimated, accepted, strict=True) if d],
        }

    def count(self, epoch: int, draft: Draft, coming: Sequence[int]) -> int:
        """Count one pass of one request. Returns how many tokens the pass emits.

        coming: the recorded tokens that follow, at most one more than was drafted. The drafted tokens that equal them
        are accepted.
        """
        num_drafted = len(draft.tokens)
        num_accepted = self.judge(draft, coming)
        num_emitted = min(num_accepted + 1, len(coming))
        self.by_epoch[epoch][0] += num_emitted
        self.by_epoch[epoch][1] += 1
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        return num_emitted

    def judge(self, draft: Draft, coming: Sequence[int]) -> int:
        """Add the draft's tokens to `bins`, up to the first wrong one. Returns how many tokens are accepted."""
        num_drafted, num_accepted = len(draft.tokens), 0
        while num_accepted < min(num_drafted, len(coming)) and draft.tokens[num_accepted] == coming[num_accepted]:
            num_accepted += 1
        for j in range(min(num_accepted + 1, num_drafted, len(coming))):
            self.bins[min(19, int(draft.probs[j] * 20))] += (1, draft.probs[j], j < num_accepted)
        return num_accepted


def request_name(problem: str, group: int, response: int) -> str:
    """Return the name of the request that decodes a response. response: its place among the problem's responses."""
    return f"{problem}/{response // group}/{response % group}"


def replay_problem(
    problem: str, responses: Sequence[np.ndarray], drafter: ReplayedDrafter, group: int, limit: int, tally: Tally
) -> None:
    """Decode a problem's responses with the drafter, and add the counts and times to `tally`.

    Each epoch decodes the next `group` responses in lock step. A drafted token is accepted if it is the recorded one.
    The first pass of a response has no draft. limit: tokens of the longest draft. Times are processor time of this
    thread, so other processes do not count.
    """
    for epoch in range(len(responses) // group):
        texts = [np.concatenate([PROMPT, r]) for r in responses[epoch * group : (epoch + 1) * group]]
        names = [request_name(problem, group, epoch * group + i) for i in range(group)]
        at = [len(PROMPT)] * group  # how many tokens of each text are decoded
        for name in names:
            drafter.begin(name, problem)
        live = list(range(group))
        drafts: Iterable[Draft] = [Draft([], [])] * group
        while live:
            emitted = []
            for i, draft in zip(live, drafts, strict=True):
                coming = texts[i][at[i] : at[i] + len(draft.tokens) + 1]
                num_emitted = tally.count(epoch, draft, coming.tolist())
                emitted.append(coming[:num_emitted])
                at[i] += num_emitted
            start = time.thread_time()
            drafter.observe([names[i] for i in live], emitted)
            tally.update_s += time.thread_time() - start
            for i in [i for i in live if at[i] == len(texts[i])]:
                drafter.end(names[i])
                live.remove(i)
            requests, contexts = [names[i] for i in live], [texts[i][: at[i]] for i in live]
            start = time.thread_time()
            drafts = drafter.propose(requests, contexts, limit) if live else []
            tally.query_s += time.thread_time() - start
            tally.queries += len(live)
        drafter.end_epoch()
