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


def test_a_last_turn_without_text_scores_as_an_empty_one() -> None:
    """A policy may end with a call of a tool: its content is null, or missing."""
    tool_calls = [{"type": "function", "function": {"name": "add", "arguments": {}}}]
    ends = [[{"role": "assistant", "content": None, "tool_calls": tool_calls}], [{"role": "assistant"}]]
    judged = JudgedConversations(lambda: MathsReward(1, 30.0), "answer")
    assert judged(completions=ends, answer=["3", "3"], prompts=["", ""]) == [0.0, 0.0]
    assert BrevityConversations()(completions=ends, answer=["3", "3"]) == [1.0, 1.0]
    judged.close()


def test_brevity_uses_no_workers() -> None:
    reward = BrevityConversations()
    assert reward(completions=conversations("", "x" * 100), answer=["1", "1"]) == [1.0, 0.5]
    assert reward.take_counts() == no_counts()
