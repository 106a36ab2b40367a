"""Seeds and problem ids that requests get if they bring none."""

from itertools import product
from types import SimpleNamespace

import numpy as np

from das.engine.rollouts.rollout import evaluation_seed, request_seed
from das.verify.admission import default_problem, features_of, made_seed


def test_no_two_requests_share_a_seed() -> None:
    drawn = [made_seed(seed, rank, number) for seed in (0, 1, -1) for rank in (0, 1) for number in range(1000)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= seed < 2**62 for seed in drawn)


def test_equal_prompts_are_one_problem() -> None:
    assert default_problem([1, 2, 3]) == default_problem((1, 2, 3)) == default_problem(np.array([1, 2, 3]))
    assert len({default_problem(prompt) for prompt in ([], [0], [0, 0], [1], [256], [2**31 - 1])}) == 6


def test_two_images_with_the_same_text_are_two_problems() -> None:
    prompt, cat, dog = [1, 2, 3], "hash of a cat", "hash of a dog"
    states = [
        SimpleNamespace(mm_features=[SimpleNamespace(identifier=name) for name in names])
        for names in ([], [cat], [dog], [cat, dog], [dog, cat])
    ]
    features = [features_of(state) for state in states]
    assert len({default_problem(prompt, each) for each in features}) == 5
    assert default_problem(prompt, []) == default_problem(prompt)


def test_seeds_of_evaluations_belong_to_problem_and_sample() -> None:
    asked = list(product((0, 100), (0, 1, 2), ("a", "b"), (0, 1, 2)))
    seeds = {evaluation_seed(run, step, problem, sample) for run, step, problem, sample in asked}
    assert len(seeds) == len(asked)
    assert not seeds & {request_seed(0, *of) for of in product((0, 1), range(8), (False, True))}
