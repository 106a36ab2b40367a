"""task=bench_drafter on made-up text, and its replay with a drafter that knows the future."""

import json
from pathlib import Path

import numpy as np
import pytest
from composed import composed_run

from das.drafter import Draft
from das.drafter.distributions import Distributions
from experiments.bench import drafter as bench_drafter
from experiments.recorded.drafter_replay import PROMPT, Tally, made_up_problems, replay_problem


class Oracle:
    """Drafts the recorded text, with a wrong token at every tenth position."""

    def __init__(self, text: np.ndarray) -> None:
        self.text = np.concatenate([PROMPT, text])

    def begin(self, request: str, problem: str) -> None: ...
    def observe(self, requests: list[str], tokens: list[np.ndarray]) -> None: ...
    def end(self, request: str) -> None: ...
    def end_epoch(self) -> None: ...

    def propose(self, requests: list[str], contexts: list[np.ndarray], limit: int) -> list[Draft]:
        drafts = []
        for context in contexts:
            at = len(context)
            tokens = [int(t) if i % 10 else -1 for i, t in enumerate(self.text[at : at + limit], at)]
            drafts.append(Draft(tokens, [0.9] * len(tokens)))
        return drafts


def test_replay_counts_passes_drafted_and_accepted() -> None:
    text = np.arange(100, dtype=np.int32)
    tally = Tally()
    replay_problem("p", [text, text], Oracle(text), 2, 16, tally)
    summary = tally.summary()
    # The first token has a pass of its own. Each further pass ends at the next wrong token and emits the right one.
    assert summary["tokens"] == 200
    assert summary["tokens_per_pass"] == pytest.approx(200 / (2 * 11))
    assert tally.num_accepted == 2 * 90  # the last pass of a response emits no token of its own
    assert summary["accept_rate"] == pytest.approx(tally.num_accepted / tally.num_drafted)


def test_result_has_its_keys(tmp_path: Path) -> None:
    small = "problems=2 group=2 sizes=[20000] array_sizes=[2000] batches=[1,4]"
    config = composed_run("task=bench_drafter", *(f"task.{option}" for option in small.split()))
    bench_drafter.run(config, [], str(tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    keys = {"tokens_per_pass", "by_epoch", "drafted_per_pass", "accept_rate", "query_us_per_request"}
    keys |= {"update_us_per_token", "build_us_per_token", "evict_us_per_trajectory", "bytes_per_token"}
    row = result["traces"]["generated"]
    assert keys <= row["das"].keys()
    assert row["das"]["tokens_per_pass"] > 1.5
    assert len(row["das"]["by_epoch"]) == 4
    if result["arctic"]:
        assert keys <= row["arctic"].keys()
        assert row["ratio"]["tokens_per_pass"] > 1
    assert set(result["batches"]) == {"1", "4"}
    assert result["sizes"][0]["tokens"] == 20000
    assert (tmp_path / "drafter.png").exists()


def test_a_trace_with_distributions_is_also_replayed_with_them(tmp_path: Path) -> None:
    (_, texts), *_ = made_up_problems(1, 4, 200, seed=0)
    sure = Distributions(np.zeros(200, np.uint8), np.empty(0, np.uint32)).text()
    row = {"problem_id": "p", "distributions": sure, "seed": 1}
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({**row, "response_ids": text.tolist()}) + "\n" for text in texts))
    small = "problems=1 group=2 sizes=[] array_sizes=[] batches=[1]"
    options = [f"task.{option}" for option in small.split()]
    bench_drafter.run(composed_run("task=bench_drafter", *options, f"task.traces=[{path}]"), [], str(tmp_path))
    row = json.loads((tmp_path / "result.json").read_text())["traces"]["x"]
    assert row["distributions"]["tokens"] == row["das"]["tokens"] == 800
    assert 1.2 < row["distributions"]["tokens_per_pass"] != row["das"]["tokens_per_pass"]
