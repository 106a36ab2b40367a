"""A workload is what a replay simulates: the responses of a training step, as token ids or only as lengths."""

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
        if len(self.starts) != len(self.problems) + 1:
            raise ValueError(f"{len(self.problems)} problem ids but {len(self.starts) - 1} responses")
        if (self.lengths < 1).any():
            raise ValueError(f"response {int(np.argmin(self.lengths))} is empty: every response needs a token")
        if self.prompt < 0:
            raise ValueError(f"prompts cannot have {self.prompt} tokens")
        if self.sampling and len(self.sampling) != len(self.problems):
            raise ValueError(f"{len(self.problems)} responses, but it is said of {len(self.sampling)} how they came")

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
