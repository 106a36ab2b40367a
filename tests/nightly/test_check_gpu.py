"""task=check_gpu at tiny shapes: every part runs, and its numbers are there."""

import json
from pathlib import Path

from scripts import run_script

from experiments.gpu.check_gpu import ARMS, PARTS

QUICK = [name for name in PARTS if name != "grpo"]  # is the task compare, which has tests of its own


def test_every_quick_part_runs_on_a_cpu(tmp_path: Path) -> None:
    settings = [f"task.parts=[{','.join(QUICK)}]", "task.seconds=1800", f"out={tmp_path}"]
    run_script("run.py", "task=check_gpu", "task.device=cpu", *settings, limit_s=2400)
    folder = tmp_path / "check_gpu"
    result = json.loads((folder / "result.json").read_text())
    assert list(result["parts"]) == QUICK
    assert all(row["ok"] and all(row["lines"]) for row in result["parts"].values())
    assert not result["gpu"]
    assert json.loads((folder / "latency.json").read_text())["passes"]
    lines = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
    timed = [line for line in lines if "visit" in line]
    assert list(dict.fromkeys(line["arm"] for line in timed)) == list(ARMS)
    for line in timed:
        drafts = line["arm"] in ("das", "ngram")
        assert (line["rows_verified"] > 0, line["tokens_per_pass"] >= 1) == (drafts, True)
    summaries = {line["summary"]: line for line in lines if "summary" in line}
    assert len(summaries["das"]["to_faster_stock"]) == 3
    assert all(0 < summaries[arm]["device_share"] <= 1 for arm in ARMS if arm != "stock_core")
