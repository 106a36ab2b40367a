"""Which groups a rollout waits for: those that need the fewest tokens, however fast drafts let requests run."""

import random
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from das.engine.rollouts.rollout import PUT_ASIDE
from experiments.training.enough import EnoughGroups, generate_enough

SIBLINGS = 3


class PacedEngine:
    """vLLM's engine as far as generate_enough sees it: a step gives each request one to `fastest` tokens."""

    def __init__(self, lengths: list[int], fastest: int, rng: random.Random):
        self.llm_engine = self
        self.request_counter = count(100)
        self.lengths, self.fastest, self.rng = lengths, fastest, rng
        self.live: dict[str, SimpleNamespace] = {}

    def add_request(self, name: str, prompt: int, params: int) -> None:
        assert prompt == params
        self.live[name] = SimpleNamespace(place=prompt, tokens=[])

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.live[name]

    def step(self) -> list[Any]:
        outputs = []
        for name, request in list(self.live.items()):
            length = self.lengths[request.place]
            for _ in range(min(self.rng.randint(1, self.fastest), length - len(request.tokens))):
                request.tokens.append(request.place)
            over = len(request.tokens) == length
            out = SimpleNamespace(token_ids=request.tokens, finish_reason="stop" if over else None)
            outputs.append(SimpleNamespace(request_id=name, finished=over, outputs=[out]))
            if over:
                del self.live[name]
        return outputs


def drawn(seed: int) -> tuple[list[int], EnoughGroups]:
    rng = random.Random(seed)
    groups = rng.randint(1, 6)
    lengths = [rng.choice([rng.randint(1, 9), rng.randint(1, 60)]) for _ in range(groups * SIBLINGS)]
    progress = [rng.choice([0, 0, rng.randint(1, 50)]) for _ in range(groups)]
    wanted = rng.randint(1, groups)
    tokens = rng.choice([0, 0, 1, rng.randint(1, 60)])
    multiple = rng.choice([divisor for divisor in range(1, wanted + 1) if wanted % divisor == 0])
    return lengths, EnoughGroups(wanted, SIBLINGS, progress, tokens, multiple)


def chosen_of_all(needs: list[int], enough: EnoughGroups) -> list[int]:
    """The groups that a step trains on, from what each needs in the end."""
    best = sorted(range(len(needs)), key=lambda group: (needs[group], group))[: enough.wanted]
    within = [group for group in best if needs[group] <= enough.tokens]
    if not enough.tokens or len(within) == enough.wanted:
        return best
    return within[: len(within) - len(within) % enough.multiple] or best[: enough.multiple]


@pytest.mark.parametrize("fastest", [1, 2, 9])
def test_the_choice_is_that_of_all_lengths(fastest: int) -> None:
    for seed in range(300):
        lengths, enough = drawn(seed)
        needs = [
            max(0, max(lengths[SIBLINGS * group :][:SIBLINGS]) - progress)
            for group, progress in enumerate(enough.progress)
        ]
        expected = chosen_of_all(needs, enough)
        engine = PacedEngine(lengths, fastest, random.Random(seed))
        outputs = generate_enough(engine, range(len(lengths)), range(len(lengths)), enough)
        assert not engine.live
        responses = [output.outputs[0].token_ids for output in outputs]
        ended = [output.outputs[0].finish_reason != PUT_ASIDE for output in outputs]
        assert ended == [len(response) == length for response, length in zip(responses, lengths, strict=True)]
        found = list(map(len, responses))
        assert enough.done(found, ended) == expected
        assert [enough.needs(group, found) for group in expected] == [needs[group] for group in expected]


@pytest.mark.parametrize(("progress", "reached"), [(0, 9), (30, 38), (31, 39), (32, 40)])
def test_without_drafts_nothing_runs_behind_the_last_group_that_is_chosen(progress: int, reached: int) -> None:
    lengths = [5, 9, 3, 50, 2, 1, 7, 7, 40]
    engine = PacedEngine(lengths, 1, random.Random(0))
    outputs = generate_enough(engine, range(9), range(9), EnoughGroups(1, SIBLINGS, [0, 0, progress]))
    assert [len(output.outputs[0].token_ids) for output in outputs] == [5, 9, 3, 9, 2, 1, 7, 7, reached]


@pytest.mark.parametrize(
    ("tokens", "multiple", "chosen", "reached", "granted"),
    [
        (0, 1, [0, 1], [5, 9, 3, 20, 2, 1, 7, 7, 20], 20),
        (12, 1, [0], [5, 9, 3, 12, 2, 1, 7, 7, 12], 12),  # the others are put aside at the limit
        (4, 1, [0], [5, 9, 3, 9, 2, 1, 7, 7, 9], 9),  # a step trains on one group at least
        (12, 2, [0, 1], [5, 9, 3, 20, 2, 1, 7, 7, 20], 20),  # or on as many as TRL can divide
        (30, 1, [0, 1], [5, 9, 3, 20, 2, 1, 7, 7, 20], 20),
    ],
)
def test_a_step_ends_at_its_limit(
    tokens: int, multiple: int, chosen: list[int], reached: list[int], granted: int
) -> None:
    engine = PacedEngine([5, 9, 3, 20, 2, 1, 7, 7, 40], 1, random.Random(0))
    enough = EnoughGroups(2, SIBLINGS, [0, 0, 0], tokens, multiple)
    outputs = generate_enough(engine, range(9), range(9), enough)
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    assert lengths == reached
    assert enough.done(lengths, [output.outputs[0].finish_reason != PUT_ASIDE for output in outputs]) == chosen
    assert enough.granted(chosen, lengths) == granted
