"""Seeds and problem ids that requests get if they bring none."""

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from das.verify.seeds import DefaultSeeds, default_problem, features_of

PROMPTS = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=60)


@given(prompts=PROMPTS, max_prompts=st.sampled_from([0, 1, 3, 1000]))
def test_no_two_requests_share_a_seed(prompts: list[list[int]], max_prompts: int) -> None:
    """Neither under the same weights, nor after new ones, nor when the prompts no longer fit into memory."""
    seeds = DefaultSeeds(7, max_prompts=max_prompts)
    drawn = []
    for _ in range(3):
        drawn += [seeds.draw(prompt) for prompt in prompts]
        seeds.new_weights()
    assert len(set(drawn)) == len(drawn)
    assert all(-(2**63) <= seed < 2**63 for seed in drawn)


@given(prompts=PROMPTS)
def test_other_requests_do_not_matter(prompts: list[list[int]]) -> None:
    """A prompt's seeds follow from its own requests only."""
    among = DefaultSeeds(7)
    drawn = [among.draw(prompt) for prompt in prompts]
    for watched in prompts[:3]:
        alone = DefaultSeeds(7)
        expected = [alone.draw(prompt) for prompt in prompts if prompt == watched]
        assert [seed for prompt, seed in zip(prompts, drawn, strict=True) if prompt == watched] == expected


def test_engine_rank_and_weights_give_other_seeds() -> None:
    seeds = [DefaultSeeds(seed, rank) for seed in (0, 1, -1) for rank in (0, 1)]
    seeds[0].new_weights()
    again = DefaultSeeds(0, 0)
    assert len({one.draw([1, 2]) for one in [*seeds, again]}) == 7
    assert DefaultSeeds(5).draw((1, 2)) == DefaultSeeds(5).draw(np.array([1, 2], np.int32))


def test_counts_are_bounded() -> None:
    seeds = DefaultSeeds(0, max_prompts=100)
    drawn = {seeds.draw([i]) for i in range(5000)}
    assert len(drawn) == 5000
    assert len(seeds._requests_of) == 100


def test_equal_prompts_are_one_problem() -> None:
    assert default_problem([1, 2, 3]) == default_problem((1, 2, 3)) == default_problem(np.array([1, 2, 3]))
    assert len({default_problem(prompt) for prompt in ([], [0], [0, 0], [1], [256], [2**31 - 1])}) == 6


def test_two_images_with_the_same_text_are_two_problems() -> None:
    """Neither the problem id nor the seed of one depends on which image came first."""
    prompt, cat, dog = [1, 2, 3], "hash of a cat", "hash of a dog"
    states = [
        SimpleNamespace(mm_features=[SimpleNamespace(identifier=name) for name in names])
        for names in ([], [cat], [dog], [cat, dog], [dog, cat])
    ]
    features = [features_of(state) for state in states]
    assert len({default_problem(prompt, each) for each in features}) == 5
    assert default_problem(prompt, []) == default_problem(prompt)
    first, second = DefaultSeeds(0), DefaultSeeds(0)
    seeds = {name: first.draw(prompt, [name]) for name in (cat, dog)}
    assert seeds == {name: second.draw(prompt, [name]) for name in (dog, cat)}
    assert len(set(seeds.values())) == 2
