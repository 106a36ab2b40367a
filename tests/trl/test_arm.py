"""GRPO on the tiny policy with the real engine: arms agree bit for bit, `stock` is vLLM's own engine beside them, and
weights that do not arrive stop the run."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lag_runs import error_of, outcome, train_all
from scripts import ROOT, SIZES, run_script

from analysis import compare as curves
from analysis import read
from analysis.metrics import METRICS
from analysis.panels import PANELS
from analysis.runs import find
from das.drafter import HistoryDrafter

pytestmark = pytest.mark.slow

STEPS = 20  # in fewer no response ends long before the others
SMALL = [
    *SIZES,
    f"trainer.max_steps={STEPS}",
    "data.problems=2",
    "data.kinds={pair:3,triple:3,walk:2}",  # of these problems the responses stay long and differ
    "trainer.learning_rate=0.01",
]
IDENTICAL = ("completions", "rewards", "losses", "grad_norms", "final_weights", "optimizer")


@pytest.fixture(scope="module")
def compared(tiny_policy: str, given_prices: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Some steps of none, stock, das and ngram. TRL's importance-sampling correction is on, so the engine's log-probs
    enter the loss. The budget has its prices from a file, so it decides the same on a busy machine."""
    settings = ["arms=[none,stock,das,ngram]", f"budget.latency={given_prices}", f"policy.path={tiny_policy}"]
    printed = run_script("run.py", *SMALL, *settings, f"out={tmp_path_factory.mktemp('outputs')}")
    last_line = printed.strip().splitlines()[-1]
    assert last_line.startswith("result: ")
    return Path(last_line.removeprefix("result: ")).parent, printed


def test_arms_are_identical(compared: tuple[Path, str]) -> None:
    folder, printed = compared
    result = json.loads((folder / "result.json").read_text())
    assert set(result["arms"]) == {"none", "stock", "das", "ngram"}
    assert result["identical"].keys() == {"das", "ngram"}
    for name in ("das", "ngram"):
        checks = result["identical"][name]
        assert all(checks[what] for what in IDENTICAL)
        assert result["arms"][name]["drafted"]["mean"] > 0
        assert result["ratio_to_none"][name]["rollout_s"]["by_epoch"].keys() == {str(epoch) for epoch in range(STEPS)}
    assert printed.count("identical: yes") == 2
    assert len(result["regime"]["by_epoch"]) == STEPS
    assert all(epoch["entropy"] > 0 for epoch in result["regime"]["by_epoch"])
    assert any(epoch["accepted_per_round"] for epoch in result["regime"]["by_epoch"])
    assert 0 < result["regime"]["rollout_share_none"] < 1
    assert result["derived"]["h100_7b"]["ratio_to_none"].keys() == {"das"}
    assert "Same tokens, same weights." in printed
    assert "ratio, derived" in (folder / "comparison.html").read_text()
    assert re.search(rf"step +{STEPS}/{STEPS} · identical so far: yes \(\d+ responses\) · stock ", printed)
    table_and_box = printed[printed.index("arm ") : printed.index("page: ")]
    assert max(map(len, table_and_box.splitlines())) <= 100
    assert result["arms"]["none"]["drafted"]["max"] == 0
    assert result["arms"]["none"]["tokens_per_pass"]["overall"] == 1


def test_stock_trains_beside_them_and_trls_own_sync_reaches_it(compared: tuple[Path, str]) -> None:
    folder, printed = compared
    assert json.loads((folder / "result.json").read_text())["ratio_to_stock"].keys() == {"none", "das", "ngram"}
    assert "stock: compared in distribution" in printed
    rows = {name: read.metrics(folder / "arms" / name) for name in ("none", "stock")}
    assert [row["completions_digest"] for row in rows["stock"]] != [row["completions_digest"] for row in rows["none"]]
    assert all(row["drafted"] == 0 and row["tokens_per_pass"] == 1 for row in rows["stock"])
    # Engine and trainer agree at every token of every step, so the weights arrived each time.
    assert all(row["sampling_logp_difference"] < 1e-2 for row in rows["stock"])
    errors = [row["sync_error"] for row in rows["stock"]]
    assert max(errors[:2]) < 1e-2
    assert set(errors[2:]) == {None}, "two checks are enough"
    timeline = read.timeline(folder / "arms" / "stock", 1)
    assert timeline["step_live"][0] == 8
    assert len(timeline["step_live"]) == rows["stock"][0]["decode_steps"]
    (difference,) = curves.compare([f"{folder}:none", f"{folder}:stock"])
    assert difference.identical is None
    assert "compared in distribution" in difference.lines[-1]


def test_arms_are_identical_without_importance_sampling_correction(
    in_process: Callable[..., Any], repetitive_policy: str, tmp_path: Path
) -> None:
    settings = ["trainer.vllm_importance_sampling_correction=false", "trainer.max_steps=4"]
    in_process(train_all, {name: [name, *settings] for name in ("none", "das")}, repetitive_policy, tmp_path)
    assert outcome(tmp_path / "das") == outcome(tmp_path / "none")
    assert sum(row["drafted"] for row in read.metrics(tmp_path / "das")) > 0


def test_a_run_leaves_what_the_design_lists(compared: tuple[Path, str]) -> None:
    folder, _ = compared
    for name in (
        "config.yaml",
        "meta.json",
        "metrics.jsonl",
        "result.json",
        "rollout_and_reward.png",
        "live_requests.png",
    ):
        assert (folder / name).stat().st_size > 0
    rows = read.metrics(folder)
    assert [row["step"] for row in rows if row["arm"] == "das"] == list(range(1, STEPS + 1))
    das = folder / "arms" / "das"
    responses = read.rollout(das, 2)
    assert len(responses) == 8
    assert sum(len(row["response_ids"]) for row in responses) == read.metrics(das)[1]["tokens"]
    assert sum(row["passes"] for row in responses) == read.metrics(das)[1]["passes"]
    metrics = read.metrics(das)
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
    assert (folder / "budget_das.png").stat().st_size > 0
    assert list(das.glob("wandb/offline-run-*/run-*.wandb"))
    assert json.loads((folder / "meta.json").read_text())["versions"]["trl"] == "1.16.0"


def test_every_name_a_run_logs_is_documented_and_the_reverse(compared: tuple[Path, str]) -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    names = {metric.name for metric in METRICS if metric.logged and not metric.of}
    assert {key for row in read.metrics(compared[0]) for key in row} == names
    assert all(f"`{name}`" in page or f"`{name.rsplit('_', 1)[0]}_CLASS`" in page for name in names)
    assert {metric for panel in PANELS for metric in panel.metrics} <= names
    for panel in PANELS:
        assert f"| {panel.title} | {', '.join(f'`{metric}`' for metric in panel.metrics)} |" in page


def test_wandb_holds_the_run_too(compared: tuple[Path, str]) -> None:
    folder, _ = compared
    none, das = (str(next((folder / "arms" / arm / "wandb").glob("offline-run-*"))) for arm in ("none", "das"))
    for runs in ([str(folder / "arms" / "none"), das], [none, das]):
        (comparison,) = curves.compare(runs)
        assert comparison.identical is True
    (in_folder,), (in_wandb,) = find(f"{folder}:das"), find(das)
    assert [row["step"] for row in in_wandb.rows] == list(range(1, STEPS + 1))
    for logged, written in zip(in_wandb.rows, in_folder.rows, strict=True):
        assert all(logged[key] == value for key, value in written.items() if key != "alarms" and value is not None)
        assert {key for key in logged if not key.startswith("_")} <= written.keys()


def test_identity_check_sees_a_difference(compared: tuple[Path, str], tmp_path: Path) -> None:
    """The verdict must be able to say no: here one loss and one digest of weights are altered."""
    from shutil import copytree

    from analysis import arms

    folder = tmp_path / "altered"
    copytree(compared[0], folder)
    rows = read.metrics(folder / "arms" / "das")
    rows[1]["loss"] += 1e-12
    (folder / "arms" / "das" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "arms" / "ngram" / "final.json").write_text(json.dumps({"final_weights": "0", "optimizer": "0"}))
    result = arms.compare_arms(folder, ["none", "das", "ngram"])
    assert not result["identical"]["das"]["losses"]
    assert result["identical"]["das"]["first_difference"] == 2
    assert result["identical"]["das"]["completions"]
    assert not result["identical"]["ngram"]["final_weights"]
    assert not result["identical"]["ngram"]["optimizer"]
    assert "NO: losses differ, first at step 2" in arms.identity_verdict(result)


def test_further_arms_change_no_bit(in_process: Callable[..., Any], repetitive_policy: str, tmp_path: Path) -> None:
    arms = ("none", "das_fixed", "das_unlimited", "self_draft")
    in_process(train_all, {name: [name, "trainer.max_steps=2"] for name in arms}, repetitive_policy, tmp_path)
    for name in arms[1:]:
        assert outcome(tmp_path / name) == outcome(tmp_path / "none")
        assert sum(row["accepted"] for row in read.metrics(tmp_path / name)) > 0


@pytest.mark.parametrize(
    ("arm", "message"),
    [("none", "did not reach the engine"), ("stock", "engine and trainer disagree on log-probs")],
)
def test_weights_that_do_not_arrive_stop_the_run(
    in_process: Callable[..., Any], tiny_policy: str, tmp_path: Path, arm: str, message: str
) -> None:
    assert message in in_process(error_of, "lost weights", arm, tiny_policy, tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run_before_a_checkpoint(
    in_process: Callable[..., Any], tiny_policy: str, tmp_path: Path
) -> None:
    error = in_process(error_of, "nan", "none", tiny_policy, tmp_path)
    assert error.startswith("TrainingDiverged: step 3: loss nan, gradient norm nan: the policy is lost")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_00001", "step_00002"]
    assert [row["step"] for row in read.metrics(tmp_path)] == [1, 2]
