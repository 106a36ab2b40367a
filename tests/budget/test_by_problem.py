from das.budget.lengths import ByProblem


def test_the_oldest_problem_is_forgotten() -> None:
    counts: ByProblem[list[int]] = ByProblem(list, max_problems=3)
    for problem in ("a", "b", "a", "c", "d"):
        counts[problem].append(1)
    assert counts == {"b": [1], "c": [1], "d": [1]}
    assert counts.get("a") is None
    assert len(counts) == 3
