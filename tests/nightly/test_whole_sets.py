"""The rewards tell right from wrong on whole problem sets."""

import gzip
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from rewards.code import CodeReward, leetcode_tests
from rewards.limits import Limits
from rewards.maths import MathsReward

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "problems"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no {DATA.relative_to(ROOT.parent)} beside the checkout")

# Gold answers that differ as texts and are judged equal. In the last pair math-verify drops the unit.
EQUAL = [
    {"-\\frac{1}{2}", "-1/2"},
    {"12", "$12$"},
    {"1", "1:1"},
    {"\\frac{1}{2}", "1:2"},
    {"25", "25^{\\circ} \\mathrm{C}"},
]
# The solution of the next problem solves these, too, or passes their few tests.
SOLVED_BY_THE_NEXT = ["leetcode/61", "leetcode/87", "leetcode/108"]


@pytest.fixture(scope="module")
def reward() -> Iterator[CodeReward]:
    """Four judges."""
    reward = CodeReward(4, Limits())
    yield reward
    reward.close()


def gold_answers(file: str) -> list[str]:
    """The gold answers of a set of maths problems. One of DSR-sub's is empty and left out."""
    if file.endswith(".jsonl"):
        answers = [json.loads(line)["answer"] for line in (DATA / file).read_text().splitlines()]
    else:
        answers = [row["reward_model"]["ground_truth"] for row in pyarrow.parquet.read_table(DATA / file).to_pylist()]
    return [str(answer) for answer in answers if str(answer).strip()]


@pytest.mark.parametrize(
    ("file", "wrong", "equal"),
    [("math500.parquet", 0, []), ("dsr_sub.parquet", 1, EQUAL), ("aime24.jsonl", 0, [])],
)
def test_a_gold_answer_equals_itself_and_no_other(file: str, wrong: int, equal: list[set[str]]) -> None:
    """One of DSR-sub's answers lacks its last brace. So it leaves a box open, which holds no answer."""
    golds = gold_answers(file)
    maths = MathsReward(2, 8.0)
    right = dict(zip(golds, maths([f"\\boxed{{{gold}}}" for gold in golds], golds), strict=True))
    assert list(right.values()).count(0.0) == wrong
    answers = random.Random(0).sample(golds, len(golds))
    for answer, gold, found in zip(
        answers, golds, maths([f"\\boxed{{{answer}}}" for answer in answers], golds), strict=True
    ):
        assert found == (right[gold] if answer == gold else float({answer, gold} in equal)), (answer, gold)
    closed = [gold for gold in golds if right[gold]]
    for text, reward in (
        ("<think> \\boxed{98765} </think> So \\boxed{%s}.", 1.0),
        ("\\boxed{98765}. No: \\boxed{%s}.", 1.0),
        ("\\boxed{%s}. Wait: \\boxed{98765}", 0.0),
        ("\\boxed{%s}. Wait: \\boxed{98", 0.0),
        ("<think> \\boxed{%s} but", 0.0),
    ):
        assert maths([text % gold for gold in closed], closed) == [reward] * len(closed), text
    maths.close()


def solutions() -> dict[str, tuple[str, str]]:
    """Reference solution and tests of every problem of DeepCoder's LeetCode file."""
    with gzip.open(DATA / "deepcoder_leetcode.json.gz") as file:
        problems = json.load(file)
    return {
        f"leetcode/{i}": (problem["solutions"], leetcode_tests(problem["tests"]["functional"]))
        for i, problem in enumerate(problems)
    }


def test_every_reference_solution_passes_and_others_do_not(reward: CodeReward) -> None:
    sources, tests = zip(*(known := solutions()).values(), strict=True)
    assert len(known) == 1889
    assert reward([f"```\n{source}\n```" for source in sources], tests) == [1.0] * len(tests)
    others = reward([f"```\n{source}\n```" for source in [*sources[1:], sources[0]]], tests)
    assert [name for name, passed in zip(known, others, strict=True) if passed] == SOLVED_BY_THE_NEXT
    assert not any(reward(["```\npass\n```"] * len(tests), tests))
