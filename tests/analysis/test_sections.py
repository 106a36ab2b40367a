"""Sections of the report, made from run folders that are written here and whose numbers are known."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import steps_on_disk
import yaml

from analysis import sections
from analysis.arms import compare_arms
from analysis.orderings import MET, NO_SIZE, NOT_MET, UNDECIDED, Ordering, Size, summary
from analysis.record import Record
from analysis.report import Line, Section, Table, markdown, verdict_classes, write_page
from analysis.sections.das import grams_by_epoch, similarity

ROOT = Path(__file__).parents[2]
PUBLISHED = json.loads((ROOT / "experiments" / "papers" / "published.json").read_text())
CONFIG = """
policy: {name: small}
data: {name: arithmetic}
trainer: {per_device_train_batch_size: 4, num_generations: 2, max_completion_length: 64, learning_rate: 0.0001}
"""


def made(name: str, runs: dict[str, Path], folder: Path) -> Section:
    """The section of configs/experiment/NAME.yaml, of these runs."""
    experiment = yaml.safe_load((ROOT / "configs" / "experiment" / f"{name}.yaml").read_text())["experiment"]
    return sections.section(name, experiment.get("title", name), runs, PUBLISHED, folder)


def row(step: int, rollout_s: float, num_accepted: int, num_drafted: int) -> dict[str, Any]:
    """A row of metrics.jsonl: 100 tokens a step, two steps an epoch."""
    tokens = 100
    return {
        "step": step,
        "epoch": (step - 1) // 2,
        "reward": 0.5,
        "loss": 0.1,
        "grad_norm": 1.0,
        "rollout_s": rollout_s,
        "step_s": 2 * rollout_s,
        "tokens": tokens,
        "passes": tokens - num_accepted,
        "tokens_per_pass": tokens / (tokens - num_accepted),
        "drafted": num_drafted,
        "accepted": num_accepted,
        "wasted": num_drafted - num_accepted,
        "draft_s": 0.01 * rollout_s,
        "draft_share": 0.01,
        "decode_steps": 10 + step,
        "length_max": 50,
        "completions_digest": f"c{step}",
        "rewards_digest": f"r{step}",
    }


def write_rows(arm: Path, rows: list[dict[str, Any]], *rollouts: Any) -> None:
    """Write an arm's files. rollouts: see steps_on_disk.write_arm."""
    steps_on_disk.write_arm(arm, rows, *rollouts)
    (arm / "final.json").write_text(json.dumps({"final_weights": "w", "optimizer": "o"}))


def write_result(folder: Path, arms: Iterable[str]) -> Path:
    """Write a comparison's config and result, from what its arms wrote. Returns the folder."""
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "result.json").write_text(json.dumps(compare_arms(folder, list(arms))))
    return folder


def write_arm(folder: Path, steps: int, rollout_s: float, num_accepted: list[int], num_drafted: int) -> None:
    """Write an arm's folder. num_accepted: accepted tokens of each step; num_drafted: drafted tokens of every step."""
    rows = [row(step + 1, rollout_s, num_accepted[step], num_drafted) for step in range(steps)]
    # Half of the responses are equal in all epochs. The others count up in epoch 0 and change after it.
    texts = [[list(range(8)), list(range(8)) if step < 2 else [*range(6), 90, 91, 92]] for step in range(steps)]
    responses = [[{"problem_id": "p", "response_ids": ids} for ids in of_step] for of_step in texts]
    timeline = {
        "step_time_s": [0.25 * rollout_s, 0.5 * rollout_s, rollout_s],
        "step_live": [4, 2, 1],
        "step_tokens": [4, 2, 1],
        "step_emitted": [4, 2, 1],
    }
    write_rows(folder, rows, responses, [timeline] * steps)


def comparison(folder: Path, seconds: dict[str, float], steps: int = 4) -> Path:
    """Write a comparison's folder. Drafting arms accept 10 more tokens with each step; ngram always accepts 5.

    seconds: arm -> seconds of each rollout.
    """
    for name, rollout_s in seconds.items():
        num_accepted = [0 if name == "none" else 10 * (step + 1) for step in range(steps)]
        if name == "ngram":
            num_accepted = [5] * steps
        write_arm(folder / "arms" / name, steps, rollout_s, num_accepted, 0 if name == "none" else 60)
    return write_result(folder, seconds)


def verdicts(section: Section) -> list[bool | None]:
    """Which orderings are met."""
    return [ordering.met for ordering in section.orderings]


def engine(section: Section) -> dict[str, str]:
    """Quantity -> our value from the real engine."""
    return {line.what: line.engine for line in section.lines}


@pytest.fixture
def maths(tmp_path: Path) -> Path:
    return comparison(tmp_path / "maths", {"none": 2.0, "das": 1.0, "das_unlimited": 1.5, "ngram": 2.5})


def test_time_and_reward(maths: Path, tmp_path: Path) -> None:
    for name in ("das_fig10", "das_fig11"):
        section = made(name, {"maths": maths}, tmp_path)
        assert engine(section)["das against none: reduction of rollout time"] == "50.0 %"
        assert engine(section)["mean reward, none / das"] == "0.5000 / 0.5000"
        assert verdicts(section) == [True, True]
        assert "shorter in 4 of 4 steps" in section.orderings[0].evidence
    assert made("das_fig10", {"maths": maths}, tmp_path).lines[0].plotted == "47.7 %"


def test_a_difference_in_one_bit_is_not_met(maths: Path, tmp_path: Path) -> None:
    result = json.loads((maths / "result.json").read_text())
    result["identical"]["das"]["losses"] = False
    (maths / "result.json").write_text(json.dumps(result))
    section = made("das_fig10", {"maths": maths}, tmp_path)
    assert verdicts(section) == [True, False]
    assert section.orderings[1].evidence == "differ: das: losses"
    table = made("ablation", {"maths": maths}, tmp_path).table
    assert table is not None
    assert [cells[-1] for cells in table.rows] == ["NO", "yes", "yes"]


def test_slower_is_not_met(tmp_path: Path) -> None:
    run = comparison(tmp_path / "run", {"none": 1.0, "das": 1.5, "das_unlimited": 1.25})
    section = made("das_fig12", {"code": run}, tmp_path)
    assert verdicts(section) == [False, False, False, True]
    assert engine(section)["code: das against none: reduction of rollout time"] == "-50.0 %"


def test_live_requests(maths: Path, tmp_path: Path) -> None:
    section = made("das_fig1", {"maths": maths}, tmp_path)
    assert engine(section)["rollout time with DAS / without"] == "0.50"
    assert engine(section)["time at which half the requests have ended, none / das"] == "0.50 / 0.25"
    assert verdicts(section) == [True, False]


def test_similarity(maths: Path, tmp_path: Path) -> None:
    epochs = grams_by_epoch(Record(maths), 4)
    assert len(epochs) == 2
    assert epochs[0]["p"] == {tuple(range(i, i + 4)) for i in range(5)}
    assert similarity(epochs[1], epochs[0]) == pytest.approx(5 / 8)  # 5 known, 3 that contain 90, 91 or 92
    assert similarity(epochs[0], epochs[1]) == 1.0
    assert similarity(epochs[0], {"other": set()}) == 0.0
    values = engine(made("das_fig2", {"m": maths}, tmp_path))
    assert "0.62" in values["similarity to recent history, first → last"]


def test_acceptance_over_training(maths: Path, tmp_path: Path) -> None:
    section = made("das_fig4", {"maths": maths}, tmp_path)
    assert engine(section)["history (DAS): first → last"] == "0.18 → 0.54"  # 30/170, 70/130
    assert verdicts(section) == [True, True]


def test_window(tmp_path: Path) -> None:
    windows = {"none": 2.0, "window_1": 1.2, "window_16": 1.0}
    section = made("das_fig7", {"w": comparison(tmp_path / "w", windows, 8)}, tmp_path)
    assert verdicts(section) == [False, False]  # acceptance is equal, and the cost falls here


def test_lengths(maths: Path, tmp_path: Path) -> None:
    section = made("das_fig9", {"maths": maths}, tmp_path)
    assert engine(section)["mean length, range"] == "8-8 tokens"
    assert verdicts(section) == [False]


def test_cap_and_batch(maths: Path, tmp_path: Path) -> None:
    section = made("das_fig13", {"half_cap": maths, "half_batch": maths}, tmp_path)
    assert verdicts(section) == [True] * 4


def test_structures_and_latency(tmp_path: Path) -> None:
    run = tmp_path / "bench"
    run.mkdir()
    array = {"tokens": 10000, "query_ms": 0.01, "insert_100_ms": 0.1, "array_query_ms": 0.5, "array_sort_ms": 20.0}
    (run / "result.json").write_text(json.dumps({"array": [array]}))
    section = made("das_fig5", {"b": run}, tmp_path)
    assert section.title == "Fig 5: growing index against suffix array"
    assert section.table is not None
    assert section.table.rows == [["10,000", "0.02 · 0.01", "0.5 · 0.5", "0.088 · 0.1", "1420 · 20"]]
    assert verdicts(section) == [True, True]
    forms = {"affine": {"coefficients": {"c_base": 0.002, "c_tok": 0.0001}, "error": 0.2}}
    (run / "result.json").write_text(json.dumps({"forms": forms}))
    passes = [[1, n, 0, 0.002 + 0.0001 * n] for n in (1, 2, 4)]
    (run / "latency.json").write_text(json.dumps({"passes": passes}))
    section = made("das_fig8", {"b": run}, tmp_path)
    assert engine(section)["fixed time per pass, time per token"] == "2.00 ms, 100.0 us"
    assert verdicts(section) == [False]


def test_ablation(maths: Path, tmp_path: Path) -> None:
    table = made("ablation", {"a": maths, "b": maths}, tmp_path).table
    assert table is not None
    assert len(table.rows) == 6
    assert table.rows[0][:5] == ["a, das", "0.500", "0.500", "1.33", "0.80"]  # 400 tokens in 300 passes, 240 drafted


def test_every_claim_has_its_verdict_beside_the_papers_number() -> None:
    found = [
        Ordering("a is faster", True, ""),
        Ordering("b is faster", False, ""),
        Ordering("by half", True, "", Size(4, 4.4, " s")),
        Ordering("too short to tell", None, ""),
    ]
    assert [each.verdict for each in found] == [NO_SIZE, NOT_MET, MET, UNDECIDED]
    assert found[2].cells[1:4] == ["4 s", "4.4 s", "1.10"]


def test_report_as_text_and_page(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(b"png")
    section = Section(
        "Fig <1>", "Setting & all.", [Line("a|b", "1", engine="2")], "Because.", ["x.png"], Table(["h"], [["cell"]]),
        [Ordering("x < y", False, "3 and 2")],
    )  # fmt: skip
    text = markdown("Title", "", [section])
    assert "| a\\|b | 1 | 2 |" in text
    assert "paper (claimed)" not in text  # empty columns are left out
    assert "| x < y | NOT MET | 3 and 2 |" in text, "columns without a number are left out"
    write_page(tmp_path / "r.html", "R", ["in a box"], ["one"], Table(["h"], []), {"Chapter": [section]})
    shown = (tmp_path / "r.html").read_text()
    assert "Fig &lt;1&gt;" in shown
    assert "<p class='advice'>in a box</p>" in shown
    assert "<td class='not'>NOT MET</td>" in shown
    assert "data:image/png;base64,cG5n" in shown


def test_a_claim_is_met_by_order_and_by_size() -> None:
    def claim(met: bool | None, ours: float | None) -> Ordering:
        return Ordering("das is faster", met, "in 3 of 4 steps", Size(13.8, ours, " % less"))

    off, close, alone = claim(True, 35.9), claim(True, 13.0), claim(True, None)
    assert off.cells == ["das is faster", "13.8 % less", "35.9 % less", "2.60", off.verdict, "in 3 of 4 steps"]
    assert off.verdict == "order met, size 2.6 times the paper's"
    assert (close.verdict, alone.verdict) == ("order and size met", "order met")
    assert (claim(False, -5.0).verdict, claim(None, 13.0).verdict) == ("NOT MET", "cannot tell")
    assert "paper 13.8 % less, ours 35.9 % less" in str(off)
    everything = [off, close, alone, claim(False, -5.0), claim(None, 13.0)]
    order, size = summary(everything)
    assert order == "Order: 3 of 5 claims are met, and 1 cannot be told from these runs."
    assert size.startswith("Size: of the 3 claims for which the paper gives a number, 1 are met within a factor of 1.5")
    classes = verdict_classes(everything)
    assert len({classes[each.verdict] for each in (off, close, alone, everything[3])}) == 4


def test_without_a_number_of_the_paper_the_box_says_nothing_of_size() -> None:
    (line,) = summary([Ordering("das is faster", True, "one run")])
    assert line == "Order: 1 of 1 claims are met."
