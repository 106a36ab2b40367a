"""A workload is what a replay simulates: the responses of a training step, as token ids or only as lengths.

Workloads of any size are made from recorded responses (Synthesis), also of sizes that no recorded trace has.

Each recorded response of a problem is used once, in random order. If more are needed, changed copies follow. A changed
response has the beginning and the length of a recorded one. It copies runs, which are sequences of tokens. After each
run it goes on at another place in the problem's responses, one that follows the same token. So every two neighbouring
tokens are neighbours in recorded text too.

The lengths of runs are uneven, as in recorded text: most are short and a few are very long (log-normal, SPREAD).
Budgets that draft only likely tokens get most of them from long runs. Long responses have shorter runs (SLOPE). The
mean length of a run, `run`, is fitted: with fixed drafts the drafter must reach as many tokens per pass on changed
responses as on recorded ones. The fit compares the recorded workload with the same workload in which every second
response is replaced by a changed one of equal length, made from the problem's other responses.

Lengths are those of the recorded responses (bootstrap), at most `max_tokens`.

If more problems are needed than were recorded, recorded problems are used several times. The first use of a problem
keeps the token ids, so first uses share text as the recorded problems do. Any later use gets other token ids, so it
shares no token with the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from das.drafter.distributions import Distributions, unknown
from das.general.arrays import token_array


@dataclass(frozen=True)
class Sampling:
    """How a response was sampled, as far as a drafter that remembers distributions uses it."""

    distributions: Distributions  # of its tokens
    seed: int | None  # of the noise; None: there was none


@dataclass(frozen=True)
class Workload:
    """The responses of one training step, in the order in which their requests are sent. Use `workload` to make one."""

    problems: tuple[str, ...]  # problem id of each response
    tokens: np.ndarray  # int32, all responses one after the other
    starts: np.ndarray  # int64 [responses + 1]: where each response begins, and where the last one ends
    prompt: int = 0  # number of tokens of each prompt
    sampling: tuple[Sampling | None, ...] = ()  # of each response, or empty; None: unknown

    def __post_init__(self) -> None:
        if not self.problems:
            raise ValueError("nothing to replay: no responses")
        if (self.lengths < 1).any():
            raise ValueError(f"response {int(np.argmin(self.lengths))} is empty: every response needs a token")

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each response."""
        return np.diff(self.starts)

    def __len__(self) -> int:
        return len(self.problems)

    def response(self, i: int) -> np.ndarray:
        """Returns the token ids of response i."""
        return self.tokens[self.starts[i] : self.starts[i + 1]]

    def sampling_of(self, i: int) -> Sampling | None:
        """Returns how response i was sampled; None if that is unknown."""
        return self.sampling[i] if self.sampling else None

    @property
    def remembered(self) -> np.ndarray | None:
        """The distributions of all tokens, uint32 [tokens, PAIRS] (das.drafter.distributions); None: unknown."""
        if not any(self.sampling):
            return None
        found = unknown(len(self.tokens))
        for i, sampling in enumerate(self.sampling):
            if sampling is not None:
                found[self.starts[i] : self.starts[i + 1]] = sampling.distributions.rows(self.response(i))
        return found

    def members(self) -> dict[str, list[int]]:
        """Returns the indices of each problem's responses, in order."""
        found: dict[str, list[int]] = {}
        for i, problem in enumerate(self.problems):
            found.setdefault(problem, []).append(i)
        return found

    def part(self, chosen: Sequence[int]) -> "Workload":
        """Returns a workload of the chosen responses only."""
        return workload(
            [self.problems[i] for i in chosen],
            [self.response(i) for i in chosen],
            self.prompt,
            [self.sampling_of(i) for i in chosen],
        )


def workload(
    problems: Sequence[str],
    responses: Sequence[Sequence[int] | np.ndarray],
    prompt: int = 0,
    sampling: Sequence[Sampling | None] = (),
) -> Workload:
    """Make a workload. problems: the problem id of each response. prompt: number of tokens of each prompt. sampling:
    how each response was sampled; empty: unknown.

    Raises ValueError if there is no response, if one is empty, and for values that are no token ids.
    """
    arrays = [token_array(response) for response in responses]
    starts = np.concatenate([[0], np.cumsum([len(a) for a in arrays])]).astype(np.int64)
    tokens = np.concatenate(arrays) if arrays else np.empty(0, np.int32)
    return Workload(tuple(problems), tokens, starts, prompt, tuple(sampling))


# ---- made up ----


def of_lengths(lengths: Sequence[int] | np.ndarray, prompt: int) -> Workload:
    """Make a workload of responses of which only the lengths are known."""
    return workload([str(i) for i in range(len(lengths))], [np.zeros(n, np.int32) for n in lengths], prompt)


Problems = list[tuple[str, list[np.ndarray]]]  # (problem, its responses in the order they were sampled)


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


# Standard deviation of the logarithm of a run's length. Tried: 0.5, 1, 1.5 and 2, with one value for all traces. With 1
# and 1.5 the `marginal` budget gets within 2.5 % of what it gets from recorded text, when fixed drafts get the same
# (docs/log.md#synthetic-text-2026-11-21).
SPREAD = 1.0
# Long responses repeat others less. So the mean run of a response falls with this power of its length / its problem's
# mean length. Tried: 0, 0.3 and 0.6. With 0.3 and fixed drafts, the times of three traces are within 5 % (same note).
SLOPE = 0.3


@dataclass(frozen=True)
class _Source:
    """A recorded problem: its responses one after the other, with an index of the places that hold the same token."""

    tokens: np.ndarray
    begins: np.ndarray  # where each response begins
    lengths: np.ndarray
    ends: np.ndarray  # bool: whether a place holds the last token of a response
    order: np.ndarray  # all places sorted by their token, without the ends of responses
    first: np.ndarray  # for each place: index in `order` of the first place with its token
    count: np.ndarray  # for each place: number of places with its token, without ends of responses

    def jump(self, places: np.ndarray, choice: np.ndarray) -> np.ndarray:
        """Return for each place a random place with the same token, or any random place if there is none.

        choice: for each place a uniform random number in [0, 1), which picks the new place.
        """
        same_token = self.first[places] + (choice * self.count[places]).astype(np.int64)
        anywhere = (choice * len(self.order)).astype(np.int64)
        return self.order[np.where(self.count[places] > 0, same_token, anywhere)]


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
    """Cut a text of `total` tokens into random runs. Returns bool [total]: True for the last token of each run.

    A run has ceil(x) tokens, where x is log-normal with mean run - 1/2.
    """
    scale = (run - 0.5) / np.exp(SPREAD**2 / 2)
    is_last = np.zeros(total, bool)
    position = 0
    while position < total:
        runs = np.ceil(scale * np.exp(SPREAD * random.standard_normal(int(total / run) + 1)))
        ends = position + np.cumsum(runs.astype(np.int64))
        is_last[ends[ends <= total] - 1] = True
        position = int(ends[-1])
    return is_last


class Synthesis:
    """Makes workloads of any size from a recorded one.

    recorded: the workload from which it takes text. run: about the mean number of tokens that a changed response copies
    in a row before it goes on elsewhere (see run_ends).
    """

    def __init__(self, recorded: Workload, run: float) -> None:
        self.run = run
        self.vocabulary = int(recorded.tokens.max()) + 1
        self._sources = [_source([recorded.response(i) for i in ids]) for ids in recorded.members().values()]

    def make(self, problems: int, group: int, max_tokens: int, seed: int) -> Workload:
        """Make a workload of `problems` problems with `group` responses each, one problem after the other.

        max_tokens: the most tokens of a response.
        """
        random = np.random.default_rng(seed)
        names, texts = [], []
        for problem in range(problems):
            source = self._sources[problem % len(self._sources)]
            id_shift = problem // len(self._sources) * self.vocabulary
            recorded = len(source.begins)
            originals = np.concatenate([random.permutation(recorded) for _ in range(-(-group // recorded))])[:group]
            lengths = np.minimum(source.lengths[originals], max_tokens)
            texts += [text + id_shift for text in self._texts(source, originals, lengths, random)]
            names += [f"synthetic-{problem}"] * group
        return workload(names, texts)

    def _texts(
        self, source: _Source, originals: np.ndarray, lengths: np.ndarray, random: np.random.Generator
    ) -> list[np.ndarray]:
        """Return a text of the given length for each of `originals` (indices of responses of the source).

        The first use of an original is the recorded text. Later uses are changed responses.
        """
        begins, used = source.begins[originals], len(source.begins)
        texts = [source.tokens[b : b + n] for b, n in zip(begins[:used].tolist(), lengths[:used].tolist(), strict=True)]
        if len(originals) > used:
            texts += _walk(source, begins[used:], lengths[used:], self.run, random)
        return texts


def _walk(
    source: _Source, begins: np.ndarray, lengths: np.ndarray, run: float, random: np.random.Generator
) -> list[np.ndarray]:
    """Return made-up texts of these lengths. Text i begins at place begins[i] of the source, and copies runs of tokens
    from it.

    run: mean tokens of a run, in a text of the source's mean length. All texts are made side by side, token by token.
    """
    count, longest = len(begins), int(lengths.max())
    mean_runs = np.maximum(1.0, run * (lengths / source.lengths.mean()) ** -SLOPE)
    leaving = np.stack([run_ends(longest, mean_run, random) for mean_run in mean_runs.tolist()], axis=1)
    choice = random.random((longest, count))
    out = np.empty((longest, count), np.int32)
    places = begins
    for t in range(longest):
        out[t] = source.tokens[places]
        jumps = leaving[t] | source.ends[places]
        places = np.where(jumps, source.jump(places, choice[t]), places) + 1 if jumps.any() else places + 1
    return [out[:length, column] for column, length in enumerate(lengths.tolist())]
