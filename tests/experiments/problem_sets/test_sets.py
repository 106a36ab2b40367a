"""Every published set: the configs of configs/data turn rows with its real columns into prompts, ids and rewards."""

import functools
import json
from typing import Any

import pytest
from composed import composed
from published import ROWS, SOLUTIONS

from experiments.problem_sets import problems_of
from experiments.run.errors import CONFIGS, UserError
from experiments.settings.checked import plain
from experiments.settings.groups import DATA
from rewards.code import CodeReward


@functools.cache
def config_of(name: str, *overrides: str) -> dict[str, Any]:
    return plain(composed(f"data={name}", *overrides).data)


def test_every_set_is_tested() -> None:
    assert {path.stem for path in (CONFIGS / "data").glob("*.yaml")} - set(DATA.groups) == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_every_row_becomes_a_problem(name: str) -> None:
    data = config_of(name)
    problems, left_out = problems_of(ROWS[name], data)
    assert (len(problems), left_out.total()) == (len(ROWS[name]), 0)
    for problem in problems:
        row = problem.row(data["judged_by"])
        assert row["problem_id"].startswith(f"{name}-")
        assert row["prompt"][-1]["role"] == "user"
        assert problem.text in row["prompt"][-1]["content"]
        if data["judged_by"] == "maths":
            assert row["answer"] == "2"
            assert name == "problem_set" or "\\boxed{}" in row["prompt"][-1]["content"]


def test_prompts() -> None:
    def prompts(name: str) -> list[str]:
        """The prompts of a set, in the order of ROWS."""
        return [problems_of([row], config_of(name))[0][0].messages[-1][1] for row in ROWS[name]]

    assert prompts("dsr_sub") == ["How many is $1+1$? Output the final answer within \\boxed{}."]
    assert prompts("gsm8k")[0].startswith("How many is 1+1?\n\nPlease reason")
    assert "standard input" in prompts("deepcoder")[0]
    assert prompts("deepcoder")[1] == "Return the double of a number, by a function f."
    assert "    def f(self, a, b):\n" in prompts("deepcoder")[4]
    assert "standard input" not in prompts("deepcoder")[4]
    assert prompts("deepcoder")[6] == ROWS["deepcoder"][6]["problem"]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_right_solutions_pass_and_wrong_ones_do_not(name: str, code_reward: CodeReward) -> None:
    data = config_of(name)
    tests = [problems_of([row], data)[0][0].gold for row in ROWS[name]]
    right = [f"```python\n{source}\n```" for source in SOLUTIONS[name]]
    assert code_reward(right, tests) == [1.0] * len(tests), code_reward.verdicts
    wrong = [text.replace("return", "return 7 and").replace("2 *", "3 *").replace("(x, x)", "[x]") for text in right]
    wrong = [text.replace("len(a) +", "-") for text in wrong]
    assert code_reward(wrong, tests) == [0.0] * len(tests)


def test_ids_do_not_depend_on_order_or_instructions() -> None:
    rows = [{"problem": f"What is {i}+1?", "answer": str(i + 1)} for i in range(20)]
    one, _ = problems_of(rows, config_of("deepscaler"))
    other, _ = problems_of(rows[::-1], config_of("deepscaler", "data.prompt='{problem} Think.'"))
    assert [problem.problem_id for problem in one] == [problem.problem_id for problem in other]
    assert len({problem.problem_id for problem in one}) == 20


def test_rows_left_out_are_counted() -> None:
    rows = [
        {"problem": "a", "answer": "1"},
        {"problem": " a\n", "answer": "2"},
        {"problem": "b", "answer": " "},
        {"problem": "c", "answer": None},
        {"problem": None, "answer": "1"},
    ]
    rows[1]["answer"] = "1.0"  # another text of the same value
    for order in (rows, rows[::-1]):
        problems, left_out = problems_of(order, config_of("deepscaler"))
        assert [(problem.text.strip(), problem.gold) for problem in problems] == [("a", "1")]
        assert left_out == {"duplicates": 1, "without an answer": 2, "without a question": 1}
    bad = [{"problem": "a", "tests": tests} for tests in ("[]", "[{}]")]
    assert problems_of(bad, config_of("deepcoder"))[1] == {"with tests that cannot be judged": 1, "without tests": 1}


def test_one_question_with_two_answers_is_a_conflict() -> None:
    rows = [{"problem": text, "answer": answer} for text in "abc" for answer in ("1", " 1", "\\frac{2}{2}")]
    rows += [{"problem": "b", "answer": "2"}, {"problem": "c\n", "answer": "x"}]
    for order in (rows, rows[::-1]):
        problems, left_out = problems_of(order, config_of("deepscaler"))
        assert [problem.text for problem in problems] == ["a"]
        (conflict,) = left_out.keys() - {"duplicates"}
        names = ", ".join(
            problem.problem_id
            for text in "cb"
            for problem in problems_of([{"problem": text, "answer": "1"}], config_of("deepscaler"))[0]
        )
        assert conflict == f"with different answers to one question ({names})"
        assert left_out == {"duplicates": 2, conflict: 8}


def test_programs_that_must_print_two_things_are_a_conflict() -> None:
    def row(*cases: tuple[str, str]) -> dict[str, str]:
        inputs, outputs = zip(*cases, strict=True)
        return {"problem": "Double it.", "tests": json.dumps({"inputs": inputs, "outputs": outputs})}

    more = [row(("1", "2"), ("2", "4")), row(("1", "2.0"), ("3", "6"))]
    problems, left_out = problems_of(more, config_of("deepcoder"))
    assert (len(problems), left_out) == (1, {"duplicates": 1})
    problems, left_out = problems_of([*more, row(("3", "7"))], config_of("deepcoder"))
    assert (len(problems), left_out.total()) == (0, 3)
    assert next(iter(left_out)).startswith("with different answers to one question (deepcoder-")


def test_max_tests_keeps_the_longest_inputs() -> None:
    cases = [{"input": "1" * size, "output": "1", "testtype": "stdin"} for size in range(1, 40)]
    (problem,), _ = problems_of([{"problem": "a", "tests": cases}], config_of("deepcoder"))
    assert problem.gold.count('"1"') >= 15
    assert "1" * 39 in problem.gold
    assert '"' + "1" * 24 + '"' not in problem.gold


def test_system_prompts() -> None:
    chat = [{"role": "system", "content": "Be brief."}, *ROWS["dsr_sub"][0]["prompt"]]
    row = {**ROWS["dsr_sub"][0], "prompt": chat}
    assert problems_of([row], config_of("dsr_sub"))[0][0].messages[0] == ("system", "Be brief.")
    other = config_of("dsr_sub", "data.system=Think.")
    assert problems_of([row], other)[0][0].messages[0] == ("system", "Think.")


@pytest.mark.parametrize(
    ("row", "overrides", "says"),
    [
        ({"question": "a", "answer": "1"}, [], "row 1 has no column problem, it has question, answer: set data"),
        ({"problem": "a"}, [], "no column answer"),
        ({"problem": 1, "answer": "1"}, [], "the problem is a int"),
        ({"problem": [{"role": "user"}], "answer": "1"}, [], "the problem is a list"),
        ({"problem": "a", "answer": ["1"]}, [], "the answer is a list"),
        ({"problem": "a", "answer": True}, [], "the answer is a bool"),
        ({"problem": "a", "answer": "1"}, ["data.answer_after='##'"], "has no '##'"),
        ({"problem": "a", "answer": "1"}, ["data.columns.id=uid"], "set data.columns.id=NAME, or null"),
        ({"problem": "a", "answer": "1", "uid": 1.5}, ["data.columns.id=uid"], "the id is a float"),
        ({"problem": "a", "answer": "1"}, ["data.prompt='{problem} {hint}'"], "no column hint, which data.prompt"),
    ],
)
def test_one_clear_line(row: dict[str, Any], overrides: list[str], says: str) -> None:
    with pytest.raises(UserError) as error:
        problems_of([row], config_of("problem_set", *overrides))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_no_rows_and_duplicate_ids() -> None:
    with pytest.raises(UserError, match="has no rows"):
        problems_of([], config_of("gsm8k"))
    rows = [{"id": 1, "problem": text, "answer": "1"} for text in "ab"]
    with pytest.raises(UserError, match="two problems have the id aime24-1"):
        problems_of(rows, config_of("aime24"))
