"""The texts that the part `speed` of task=check_gpu rolls out: made-up ones of equal lengths, and recorded ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from das.engine.rollouts.rollout import RolloutRequest, request_seed
from experiments.arm.recorded_text import Text, texts_of
from experiments.gpu.engines import SHAPE
from experiments.gpu.scale import Scale
from experiments.simulate.made_up import made_up_problems
from experiments.small_policy.shapes import shape_of
from experiments.training.recorded_engine import Recording

SIBLINGS, VISITS = 8, 3
LIVE = (256, 64, 16)  # requests of the made-up texts
PROMPT, LENGTH = 256, 192  # tokens of a made-up prompt, and response
SEATS, CONTEXT, LONGEST = 64, 2048, 512  # of the recorded texts: requests, tokens of a prompt, of the longest response


@dataclass(frozen=True)
class Work:
    """Responses to the same problems in some visits. Token 0 occurs nowhere, and `end` only at the end of a response.

    prompts: of each request. Siblings stand one behind the other, with prompts of their own, because a prompt that
    requests share is read from the device's cache, which makes long contexts look cheap."""

    name: str
    end: int
    prompts: Sequence[Sequence[int]]
    recording: Recording

    @property
    def lengths(self) -> set[int]:
        """The lengths of the responses in tokens."""
        return {len(text) for texts in self.recording.responses.values() for text in texts}

    def first_tokens(self, count: int) -> "Work":
        """Returns responses that end after so many tokens."""
        short = {
            problem: [[*text[: min(count, len(text)) - 1], self.end] for text in texts]
            for problem, texts in self.recording.responses.items()
        }
        return replace(self, recording=replace(self.recording, responses=short))

    def request(self, visit: int, stops: bool) -> RolloutRequest:
        """Return the request of a visit. Its limit of tokens is the same for all, so that no budget can learn the
        length of a response. stops: whether responses end at `end`."""
        from vllm import SamplingParams

        ends, count = [self.end] if stops else [], len(self.prompts)
        return RolloutRequest(
            [{"prompt_token_ids": list(prompt)} for prompt in self.prompts],
            # TRL asks for log-probs
            SamplingParams(temperature=1.0, logprobs=0, max_tokens=max(self.lengths), stop_token_ids=ends),
            [f"{i // SIBLINGS}" for i in range(count)],
            seeds=[request_seed(0, visit, i) for i in range(count)],
            step=visit,
            next_history_tick=visit + 1,
        )


def works(scale: Scale) -> list[Work]:
    """Return the texts. Recorded responses are cut to the same fraction, so their lengths keep their proportions. Long
    prompts stand for the contexts that whole responses would have."""
    vocabulary = scale.pick(shape_of(SHAPE).vocabulary, None) or 512
    prompt, length = scale.pick((PROMPT, LENGTH), (12, 24))
    made = [_work(f"{live} made up", vocabulary, _made_up(live, length - 1), prompt) for live in scale.pick(LIVE, (8,))]
    seats, context, longest = scale.pick((SEATS, CONTEXT, LONGEST), (8, 40, 48))
    if scale.recorded is None:
        rng = np.random.default_rng(0)  # a stand-in: skewed lengths, a third of the longest on average
        texts = [[text[: 1 + int(longest * rng.random() ** 2)] for text in own] for own in _made_up(seats, longest)]
        return [*made, _work(f"{seats} made up, own lengths", vocabulary, texts, context)]
    texts = texts_of(scale.recorded, seats // SIBLINGS, SIBLINGS * VISITS, longest, vocabulary - 1)
    texts = [[text[:-1] for text in own] for own in texts]
    return [*made, _work(f"{seats} recorded, own lengths", vocabulary, texts, context)]


def _made_up(live: int, length: int) -> list[list[Text]]:
    made = made_up_problems(live // SIBLINGS, SIBLINGS * VISITS, length, seed=0)
    return [[text.tolist() for text in own] for _, own in made]


def _work(name: str, vocabulary: int, texts: Sequence[Sequence[Text]], prompt: int) -> Work:
    """Makes the work of the responses to each problem. prompt: tokens of each prompt."""
    end = vocabulary - 1
    responses = {
        f"{i}": [[*(1 + token % (end - 1) for token in text), end] for text in own] for i, own in enumerate(texts)
    }
    prompts = [[2 + i, *range(1, prompt)] for i in range(len(texts) * SIBLINGS)]
    return Work(name, end, prompts, Recording(responses, SIBLINGS, 1))
