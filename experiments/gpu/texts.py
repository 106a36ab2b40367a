"""The texts that the part `speed` of task=check_gpu rolls out: made-up ones of equal lengths, and recorded ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.gpu.engines import SHAPE
from experiments.gpu.scale import Scale
from experiments.harness.recorded_text import Text, texts_of
from experiments.simulate.made_up import made_up_problems
from experiments.small_policy.shapes import shape_of

SIBLINGS, VISITS = 8, 3
LIVE = (256, 64, 16)  # requests of the made-up texts
PROMPT, LENGTH = 256, 192  # tokens of a made-up prompt, and response
SEATS, CONTEXT, LONGEST = 64, 2048, 512  # of the recorded texts: requests, tokens of a prompt, of the longest response


@dataclass(frozen=True)
class Work:
    """Responses of some visits to the same problems. Siblings stand one behind the other. Token 0 occurs nowhere, and
    `end` only at the end of each response."""

    name: str
    end: int
    prompts: Sequence[Sequence[int]]
    visits: Sequence[Sequence[Text]]

    @property
    def is_even(self) -> bool:
        """Whether all responses are equally long, so that each visit takes vLLM as long as the others."""
        return len({len(text) for texts in self.visits for text in texts}) == 1

    @property
    def problems(self) -> list[str]:
        """The problem of each response."""
        return [f"{i // SIBLINGS}" for i in range(len(self.prompts))]

    def first_tokens(self, count: int) -> "Work":
        """Returns one visit, in which each response ends after so many tokens."""
        return replace(self, visits=[[[*text[: min(count, len(text)) - 1], self.end] for text in self.visits[-1]]])


def works(scale: Scale) -> list[Work]:
    """Return the texts.

    Recorded responses are cut to the same fraction, so their lengths keep their proportions. Long prompts stand for the
    contexts that whole responses would have. Each request has its own, because a prompt that requests share is read
    from the device's cache, which makes long contexts look cheap.
    """
    vocabulary = scale.pick(shape_of(SHAPE).vocabulary, None) or 512
    made = [_made_up(live, vocabulary, *scale.pick((PROMPT, LENGTH), (12, 24))) for live in scale.pick(LIVE, (8,))]
    seats, context, longest = scale.pick((SEATS, CONTEXT, LONGEST), (8, 40, 48))
    if scale.recorded is None:
        rng = np.random.default_rng(0)  # a stand-in: skewed lengths, a third of the longest on average
        texts = _own(seats // SIBLINGS, longest)
        texts = [[text[: 1 + int(longest * rng.random() ** 2)] for text in group] for group in texts]
    else:
        texts = texts_of(scale.recorded, seats // SIBLINGS, SIBLINGS * VISITS, longest, vocabulary - 1)
        texts = [[text[:-1] for text in group] for group in texts]
    name = f"{seats} {'made up' if scale.recorded is None else 'recorded'}, own lengths"
    own_prompts = [[2 + i, *range(1, context)] for i in range(seats)]
    return [*made, _work(name, texts, vocabulary, own_prompts)]


def _made_up(live: int, vocabulary: int, prompt: int, length: int) -> Work:
    prompts = [[2 + i // SIBLINGS, *range(1, prompt)] for i in range(live)]
    return _work(f"{live} made up", _own(live // SIBLINGS, length - 1), vocabulary, prompts)


def _own(problems: int, length: int) -> list[list[Text]]:
    made = made_up_problems(problems, SIBLINGS * VISITS, length, seed=0)
    return [[text.tolist() for text in group] for _, group in made]


def _work(name: str, texts: Sequence[Sequence[Text]], vocabulary: int, prompts: Any) -> Work:
    """Makes the work of the responses to each problem, which are in the order of the visits."""
    end = vocabulary - 1
    forced = [[[*(1 + token % (end - 1) for token in text), end] for text in group] for group in texts]
    visits = [[text for group in forced for text in group[i * SIBLINGS : (i + 1) * SIBLINGS]] for i in range(VISITS)]
    return Work(name, end, prompts, visits)
