"""task=bench_drafter on made-up text, and its replay with a drafter that knows the future."""

import json
from pathlib import Path

import numpy as np
import pytest
from composed import composed_run

from das.drafter import Draft
from experiments.measure import drafter as bench_drafter
from experiments.measure.drafter import PROMPT, replay


class Oracle:
    """Drafts the recorded text, with a wrong token at every tenth position."""

    def __init__(self, text: np.ndarray) -> None:
        self.text = np.concatenate([PROMPT, text])

    contexts: list[np.ndarray]
    history_tick = 0

    def begin(self, request: str, problem: str, prompt: np.ndarray) -> None: ...
    def observe_batch(self, requests: list[str], tokens: list[np.ndarray]) -> None: ...
    def end(self, request: str) -> None: ...
    def move_window(self, tick: int) -> None: ...

    def propose(self, requests: list[str], limits: list[int]) -> list[Draft]:
        drafts = []
        for context, limit in zip(self.contexts, limits, strict=True):
            at = len(context)
            tokens = [int(t) if i % 10 else -1 for i, t in enumerate(self.text[at : at + limit], at)]
            drafts.append(Draft(tokens, [0.9] * len(tokens)))
        return drafts


def test_replay_counts_passes_drafted_and_accepted() -> None:
    text = np.arange(100, dtype=np.int32)
    found = replay([("p", [text, text])], Oracle(text), 2, 16)
    # The first token has a pass of its own. Each further pass ends at the next wrong token and emits the right one.
    assert found["tokens_per_pass"] == pytest.approx(200 / (2 * 11))
    assert found["by_epoch"] == [found["tokens_per_pass"]]
    accepted = 2 * 90  # the last pass of a response emits no token of its own
    assert found["accept_rate"] * found["drafted_per_pass"] == pytest.approx(accepted / 22)


def test_result(tmp_path: Path) -> None:
    options = ["task.problems=2", "task.group=2", "task.array_sizes=[2000]"]
    bench_drafter.run(composed_run("task=bench_drafter", *options), [], str(tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    row = result["traces"]["generated"]
    assert row["das"]["tokens_per_pass"] > 1.5
    assert len(row["das"]["by_epoch"]) == 4
    if "arctic" in row:
        assert row["ratio"]["tokens_per_pass"] > 1
    (array,) = result["array"]
    assert array["tokens"] == 2000
    assert all(value > 0 for value in array.values())
