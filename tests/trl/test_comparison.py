"""A comparison of none, stock, das and ngram by run.py: arms agree bit for bit, in their evaluations too, `stock` is
vLLM's own engine beside them, and the folder holds what the design lists. The run is `compared` in tests/conftest.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from scripts import COMPARED_STEPS, ROOT

from analysis import compare as curves
from analysis import read
from analysis.figures import PANELS
from analysis.metrics import METRICS, evaluations
from das.drafter import HistoryDrafter
from experiments.arm.tracking import records

pytestmark = pytest.mark.slow

EXACT = ("completions", "rewards", "losses", "grad_norms", "final_weights", "optimizer", "eval")
EVALUATION = ("step", "completions_digest", "correct", "pass_at_k", "tokens", "length_mean", "truncated")


@pytest.fixture(scope="module")
def printed(compared: Path) -> str:
    return (compared / "printed").read_text()


@pytest.fixture(scope="module")
def result(compared: Path) -> dict[str, Any]:
    return read.result(compared)


def test_arms_are_identical(result: dict[str, Any], printed: str) -> None:
    assert set(result["arms"]) == {"none", "stock", "das", "ngram"}
    assert result["identical"].keys() == {"das", "ngram"}
    for name in ("das", "ngram"):
        assert all(result["identical"][name][what] for what in EXACT)
        assert result["arms"][name]["drafted"]["mean"] > 0
        assert result["ratio_to_none"][name]["rollout_s"]["by_epoch"].keys() == {"0", "1"}
    assert result["arms"]["none"]["drafted"]["max"] == 0
    assert result["arms"]["none"]["tokens_per_pass"]["overall"] == 1
    assert printed.count("identical: yes") == 2
    assert "optimizer state, evaluations)" in printed


def test_stock_trains_beside_them_and_trls_own_sync_reaches_it(
    compared: Path, result: dict[str, Any], printed: str
) -> None:
    assert result["ratio_to_stock"].keys() == {"none", "das", "ngram"}
    assert "stock: compared in distribution" in printed
    rows = {name: read.metrics(compared / "arms" / name) for name in ("none", "stock")}
    assert [row["completions_digest"] for row in rows["stock"]] != [row["completions_digest"] for row in rows["none"]]
    assert all(row["drafted"] == 0 and row["tokens_per_pass"] == 1 for row in rows["stock"])
    # Engine and trainer agree at every token of every step, so the weights arrived each time.
    assert all(row["sampling_logp_difference"] < 1e-2 for row in rows["stock"])
    timeline = read.timeline(compared / "arms" / "stock", 1)
    assert timeline["step_live"][0] == 8
    assert len(timeline["step_live"]) == rows["stock"][0]["decode_steps"]
    (difference,) = curves.compare(curves.gather([f"{compared}:none", f"{compared}:stock"]))
    assert difference.identical is None
    assert "compared in distribution" in difference.lines[-1]


def test_evaluations_are_equal_in_all_arms(compared: Path, result: dict[str, Any], printed: str) -> None:
    none, das = (evaluations(read.metrics(compared / "arms" / name)) for name in ("none", "das"))
    assert [each["step"] for each in das] == result["eval"]["das"]["step"] == [0, 2, 3]
    assert len({each["completions_digest"] for each in das}) == 3  # other weights, other noise
    assert [[each[key] for key in EVALUATION] for each in none] == [[each[key] for key in EVALUATION] for each in das]
    assert sum(each["drafted"] for each in none) == 0
    assert all(each["tokens"] > each["passes"] for each in das)
    assert result["eval"]["das"]["pass_at_k"].keys() == {"1", "2", "3"}
    assert "eval   0/3  none          pass@1 0.000" in printed


def test_a_run_leaves_what_the_design_lists(compared: Path) -> None:
    files = ("config.yaml", "meta.json", "metrics.jsonl", "result.json", "rollout_and_reward.png", "live_requests.png")
    for name in (*files, "budget_das.png"):
        assert (compared / name).stat().st_size > 0
    steps = list(range(1, COMPARED_STEPS + 1))
    assert [row["step"] for row in read.metrics(compared) if row["arm"] == "das"] == steps
    das = compared / "arms" / "das"
    metrics, responses = read.metrics(das), read.rollout(das, 2)
    assert len(responses) == 8
    assert sum(len(row["response_ids"]) for row in responses) == metrics[1]["tokens"]
    assert sum(row["passes"] for row in responses) == metrics[1]["passes"]
    assert all(row["wasted"] == row["drafted"] - row["accepted"] >= 0 for row in metrics)
    assert all(row["drafted"] == sum(row[f"drafted_{name}"] for name in ("short", "medium", "long")) for row in metrics)
    assert all(row["draft_rounds"] <= min(row["drafted"], row["passes"]) for row in metrics)
    assert all((row["draft_rounds"] > 0) == (row["drafted"] > 0) for row in metrics)
    live_of_steps = [read.timeline(das, row["step"])["step_live"] for row in metrics]
    assert [row["tail_steps"] for row in metrics] == [sum(n <= 4 for n in live) for live in live_of_steps]
    assert max(row["tail_steps"] for row in metrics) > 0
    assert {"calibration_error", "length_error", "pass_time_error"} <= metrics[-1].keys()
    assert not any(row["alarms"] for row in metrics)
    warm = HistoryDrafter(warm=das / "history.npz")
    assert warm.history_tokens == metrics[-1]["history_tokens"] > 0
    assert list(das.glob("wandb/offline-run-*/run-*.wandb"))
    assert json.loads((compared / "meta.json").read_text())["versions"]["trl"] == "1.16.0"


def test_every_name_a_run_logs_is_documented_and_the_reverse(compared: Path) -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    names = {metric.name for metric in METRICS if metric.logged and not metric.of}
    assert {key for row in read.metrics(compared) for key in row} == names | {"eval"}
    assert all(f"`{name}`" in page or f"`{name.rsplit('_', 1)[0]}_CLASS`" in page for name in names)
    assert {metric for panel in PANELS for metric in panel.metrics} <= names
    for panel in PANELS:
        assert f"| {panel.title} | {', '.join(f'`{metric}`' for metric in panel.metrics)} |" in page


def test_wandb_and_the_curves_hold_the_run_too(compared: Path, tmp_path: Path) -> None:
    runs = curves.gather([f"{compared}:none", f"{compared}:das"])
    (comparison,) = curves.compare(runs, tmp_path / "page.html")
    assert comparison.identical is True
    assert "Held-out pass@1" in (tmp_path / "page.html").read_text()
    for arm in ("none", "das"):
        (file,) = (compared / "arms" / arm).glob("wandb/offline-run-*/run-*.wandb")
        logged = [record["history"]["item"] for record in records(file) if record["type"] == "history"]
        by_step = {item["_step"]: item for item in logged}
        for row in read.metrics(compared / "arms" / arm):
            known = {key: value for key, value in row.items() if isinstance(value, int | float | str)}
            assert {key: by_step[row["step"]][key] for key in known} == known
