"""Rewards as TRL calls them, and who counts what went wrong with their workers."""

from rewards.conversations import BrevityConversations, JudgedConversations
from rewards.maths import MathsReward
from rewards.workers import DEATHS, no_counts


def conversations(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


def test_the_judge_starts_at_the_first_call_and_its_counts_are_its_own() -> None:
    started: list[MathsReward] = []

    def start() -> MathsReward:
        started.append(MathsReward(1, 30.0))
        return started[-1]

    reward, other = JudgedConversations(start, "answer"), JudgedConversations(start, "answer")
    assert reward.take_counts() == no_counts()
    assert not started
    answers = {"answer": ["3", "3"], "prompts": ["", ""]}
    assert reward(completions=conversations("\\boxed{3}", "\\boxed{4}"), **answers) == [1.0, 0.0]
    assert other(completions=conversations("\\boxed{3}", "\\boxed{4}"), **answers) == [1.0, 0.0]
    assert len(started) == 2
    (worker,) = started[0]._workers._all
    worker.process.kill()
    assert reward(completions=conversations("\\boxed{3}", "\\boxed{4}"), **answers) == [1.0, 0.0]
    assert other.take_counts() == no_counts()
    assert reward.take_counts() == {**no_counts(), DEATHS: 1}
    assert reward.take_counts() == no_counts()
    for each in (reward, other):
        each.close()
    assert not any(judge._workers._all for judge in started)
    assert reward(completions=conversations("\\boxed{3}", "\\boxed{4}"), **answers) == [1.0, 0.0]
    assert len(started) == 3  # another one
    reward.close()


def test_brevity_uses_no_workers() -> None:
    reward = BrevityConversations()
    assert reward(completions=conversations("", "x" * 100), answer=["1", "1"]) == [1.0, 0.5]
    assert reward.take_counts() == no_counts()
