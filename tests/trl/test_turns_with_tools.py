"""TRL's environments, whose methods are tools: drafts change nothing in any turn, and history is kept by step."""

import json
from pathlib import Path

import pytest
from scripts import run_script

from das.drafter.saved import read_history

pytestmark = pytest.mark.slow


def test_drafts_change_nothing_in_several_turns(repetitive_policy: str, tmp_path: Path) -> None:
    run_script("tests/trl/tool_run.py", repetitive_policy, tmp_path)
    runs = {method: json.loads((tmp_path / f"{method}.json").read_text()) for method in ("none", "das")}
    none, das = runs["none"], runs["das"]
    assert das["same"] == none["same"]
    assert das["costs"]["ticks"] == none["costs"]["ticks"] == [1, 2, 3, 4], "the clock moves by step"
    assert not any(das["costs"]["alarms"])
    for plain, drafted in zip(none["costs"]["by_turn"], das["costs"]["by_turn"], strict=True):
        assert [turn["requests"] for turn in drafted] == [turn["requests"] for turn in plain]
        assert drafted[0]["requests"] == 8
        assert [turn["passes"] for turn in plain] == [turn["tokens"] for turn in plain]
    turns = [turn for step in das["costs"]["by_turn"] for turn in step[1:]]
    assert any(turn["requests"] < 8 for turn in turns)
    assert sum(turn["passes"] for turn in turns) < sum(turn["tokens"] for turn in turns), "later turns draft too"

    problems = das["same"]["problems"]
    assert all(len(set(step[:4])) == len(set(step[4:])) == 1 for step in problems)
    assert len({problem for step in problems for problem in step}) == 2, "a row's problem is its own, in every step"
    history = read_history(tmp_path / "das.npz")
    texts = sorted(tuple(text.tokens[text.context :].tolist()) for text in history.texts)
    generated = []
    for responses, turns_of_rows in zip(das["same"]["responses"], das["same"]["turns"], strict=True):
        for response, lengths in zip(responses, turns_of_rows, strict=True):
            for length in lengths:
                generated.append(tuple(response[:length]))
                response = response[length:]
    assert texts == sorted(generated), "the history holds what was generated, turn by turn, and nothing else"
    assert {text.problem for text in history.texts} == {problem for step in problems for problem in step}
