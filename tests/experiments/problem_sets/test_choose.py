"""The choice of problems is the same on every machine, for any order of the rows and any other problems in the set."""

import random

from experiments.problem_sets import Problem, draw, part_of

PROBLEMS = [Problem(f"set-{i}", (("user", str(i)),), str(i), "1") for i in range(400)]


def ids(problems: list[Problem]) -> list[str]:
    return [problem.problem_id for problem in problems]


def test_the_draw_depends_on_the_seed_only() -> None:
    shuffled = random.Random(1).sample(PROBLEMS, len(PROBLEMS))
    first, _ = draw(PROBLEMS, 8, 0, lambda problem: None)
    # Fixed ids: a draw that differs between machines or versions would make another experiment.
    assert ids(first)[:4] == ["set-329", "set-221", "set-156", "set-373"]
    assert ids(draw(shuffled, 8, 0, lambda problem: None)[0]) == ids(first)
    assert ids(draw(PROBLEMS, 8, 1, lambda problem: None)[0]) != ids(first)
    assert ids(draw(PROBLEMS, 20, 0, lambda problem: None)[0])[:8] == ids(first)
    assert len(draw(PROBLEMS, None, 0, lambda problem: None)[0]) == 400


def test_parts_are_disjoint_and_stable() -> None:
    train, held_out = part_of(PROBLEMS, "train", 0.1), part_of(PROBLEMS, "eval", 0.1)
    assert sorted(ids(train) + ids(held_out)) == sorted(ids(PROBLEMS))
    assert 20 < len(held_out) < 60
    assert set(ids(held_out)) <= set(ids(part_of(PROBLEMS, "eval", 0.2)))
    assert ids(part_of(PROBLEMS[:100], "eval", 0.1)) == [i for i in ids(held_out) if i in ids(PROBLEMS[:100])]
    assert part_of(PROBLEMS, "train", 0) == PROBLEMS
