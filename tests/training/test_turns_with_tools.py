"""TRL's tools and environments with das.speculate(): drafts change nothing in any turn, and history is kept by step."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from das.drafter.saved import read_history

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def trained(policy: str, kind: str, folder: Path) -> dict[str, Any]:
    """What the runs without drafts and with das left, by method."""
    runs = {}
    for method in ("none", "das"):
        out = folder / method
        command = [sys.executable, "tests/training/tool_run.py", policy, method, kind, str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        runs[method] = json.loads((out / "run.json").read_text())
    return runs


@pytest.mark.parametrize("kind", ["tools", "environment"])
def test_drafts_change_nothing_in_several_turns(kind: str, repetitive_policy: str, tmp_path: Path) -> None:
    runs = trained(repetitive_policy, kind, tmp_path)
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
    history = read_history(tmp_path / "das" / "history.npz")
    texts = sorted(tuple(text.tokens[text.context :].tolist()) for text in history.texts)
    generated = []
    for responses, turns_of_rows in zip(das["same"]["responses"], das["same"]["turns"], strict=True):
        for response, lengths in zip(responses, turns_of_rows, strict=True):
            for length in lengths:
                generated.append(tuple(response[:length]))
                response = response[length:]
    assert texts == sorted(generated), "the history holds what was generated, turn by turn, and nothing else"
    assert {text.problem for text in history.texts} == {problem for step in problems for problem in step}
