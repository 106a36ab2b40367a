"""Sections about drafters that are models, from run folders that are written here and whose numbers are known."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from analysis.quantities import per, speedup
from analysis.record import Record
from analysis.sections.efficient_rollout import stays_on, switch
from experiments.run.run_folder import write_timeline
from tests.analysis.test_sections import made, row, verdicts, write_result, write_rows

HEADS = [f"warm_{warm}-online_{online}" for warm in ("in_domain", "general") for online in ("false", "true")]


def comparison(folder: Path, arms: dict[str, tuple[float, int, int, int]], **more: Any) -> Path:
    """Write a comparison of four steps. arms: seconds of a rollout, accepted and drafted tokens, cycles of a step.

    A step takes a second besides its rollout. more: further entries of every row.
    """
    for name, (rollout_s, accepted, drafted, rounds) in arms.items():
        rows = [
            {
                **row(step, rollout_s, accepted, drafted),
                "draft_rounds": rounds,
                "step_s": rollout_s + 1,
                "sync_s": 0.1,
                **more,
            }
            for step in range(1, 5)
        ]
        write_rows(folder / "arms" / name, rows)
    return write_result(folder, arms)


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    """In-domain heads have 2 tokens per pass and are twice as fast; general ones 1.25 and 1.6, and are slow."""
    numbers = [(1.0, 50, 60, 30), (1.0, 50, 60, 30), (2.5, 20, 60, 30), (2.4, 37, 60, 30)]
    return comparison(
        tmp_path / "heads",
        {"none": (2.0, 0, 0, 0), "ngram": (2.5, 5, 60, 30), **dict(zip(HEADS, numbers, strict=True))},
    )


def test_counts_of_cycles(heads: Path) -> None:
    run = Record(heads)
    assert per(run[HEADS[0]], "drafted", "draft_rounds") == 2
    assert per(run[HEADS[0]], "accepted", "drafted") == 50 / 60
    assert speedup(run, HEADS[0]) == 2
    assert speedup(run, HEADS[0], "step_s") == 1.5
    assert math.isnan(per(run["none"], "accepted", "draft_rounds"))


def test_parts_of_a_step(heads: Path, tmp_path: Path) -> None:
    section = made("nemo_rl_main", {"heads": heads}, tmp_path)
    assert verdicts(section) == [True, True, True, True, True]
    assert section.table is not None
    by_part = {cells[0]: cells[1:] for cells in section.table.rows}
    assert by_part["generation"] == ["2.00", "2.50", "1.00", "1.00"]
    assert by_part["log-probs, rewards, training"] == ["0.90"] * 4
    assert by_part["step, times as fast"] == ["1", "0.86", "1.50", "1.50"]
    assert section.lines[0].engine == "66.7 %"


def test_initialisation_online_training_and_draft_length(heads: Path, tmp_path: Path) -> None:
    arms = {
        "none": (2.0, 0, 0, 0),
        "tokens_3": (1.4, 50, 90, 30),
        "tokens_5": (1.6, 55, 150, 30),
    }
    runs = {"heads": heads, "depth": comparison(tmp_path / "run", arms)}
    section = made("nemo_rl_heads", runs, tmp_path)
    assert verdicts(section) == [True] * 9
    assert [o.evidence for o in section.orderings[2:4]] == ["+27.0%", "+0.0%"]
    assert section.table is not None
    assert section.table.rows[0][:3] == ["in-domain, frozen", "3.32 / 1.77", "2.77 / 1.53"]
    assert section.table.rows[4] == ["k = 3", "3.32 / 1.77", "2.77 / 1.53", "2.00", "1.43", "0.0%"]
    assert (tmp_path / "heads.png").exists()


def test_lags(tmp_path: Path) -> None:
    """A rollout takes 2 s without drafts and 1.2 s with them, training 1 s; at lag 1 a step waits for the rest."""
    runs = {}
    for lag, waits in ((0, (2.0, 1.2)), (1, (1.0, 0.2)), (2, (1.0, 0.2))):
        run = comparison(tmp_path / str(lag), {"none": (2.0, 0, 0, 0), "das": (1.2, 50, 60, 30)})
        for arm, exposed_s in zip(("none", "das"), waits, strict=True):
            rows = [{**row, "exposed_s": exposed_s, "step_s": exposed_s + 1} for row in Record(run)[arm]]
            write_rows(run / "arms" / arm, rows)
        runs[f"lag_{lag}"] = run
    section = made("nemo_rl_async", runs, tmp_path)
    assert verdicts(section) == [True, True, True]
    lines = {line.what: (line.plotted, line.replay, line.engine) for line in section.lines}
    assert lines["lag 1: exposed generation, none"] == ("10.4 s", "1.00 s", "1.00 s")
    assert lines["lag 1: step, das"] == ("60.5 s", "1.20 s", "1.20 s")
    assert lines["lag 1: step speedup"] == ("1.24x", "1.67x", "1.67x")
    assert section.table is not None
    assert section.table.rows[1] == ["0", "das", "1.20", "1.00", "1.20", "1.20", "2.20", "2.20", "0%"]
    assert section.table.rows[2][-1] == "100%", "all of the training runs beside the rollout"


SELF_DRAFTS = {"none": 1.0, "self_draft": 0.8, "self_draft_toggle": 0.75, "self_draft_adaptive": 0.7}


def untrained(folder: Path, rungs: list[int], on_from: int) -> dict[str, Path]:
    """Write comparisons of 2 and 4 requests without training. One request ends in each pass from the second on."""
    runs = {"few": folder / "few", "many": folder / "many"}
    for size, run in zip((2, 4), runs.values(), strict=True):
        live = list(range(size, 0, -1))
        for arm, seconds in SELF_DRAFTS.items():
            write_rows(run / "arms" / arm, [row(step, seconds, 49, 50) for step in range(1, len(rungs) + 1)])
            for step, rung in enumerate(rungs, start=1):
                drafted = rung if arm == "self_draft_adaptive" else 7
                tokens = [n * (1 + drafted) if n <= on_from and arm != "none" else n for n in live]
                trace = {"step_live": live, "step_tokens": tokens, "step_emitted": live, "pass_speedup": [0.9] * size}
                write_timeline(run / "arms" / arm, step, trace)
        write_result(run, SELF_DRAFTS)
        (run / "config.yaml").write_text(json.dumps({"trainer": {"per_device_train_batch_size": size}}))
    return runs


def test_toggle_and_ladder(tmp_path: Path) -> None:
    runs = untrained(tmp_path / "late", [5, 5, 7, 7, 9], on_from=3)
    section = made("efficient_rollout_toggle", runs, tmp_path)
    assert verdicts(section) == [True, True, True]
    assert section.lines[0].engine == ", ".join(["25.0 %"] * 5)
    assert section.lines[2].engine == "5, 5, 7, 7, 9; " + ", ".join(["0.98"] * 5)
    early = made("efficient_rollout_toggle", untrained(tmp_path / "early", [5, 7], on_from=4), tmp_path)
    assert verdicts(early) == [False, True, False]  # on from the start; and the ladder climbs after one rollout


def test_trials_and_controls_are_not_the_switch() -> None:
    """A pass with drafts while the toggle is off, then one without while it is on."""
    trace = {"step_live": [2] * 20, "step_tokens": [2, 4, 2, 2, 2, 4, 4, 4, 4, 4, 4, 2, *[4] * 8]}
    trace["step_emitted"] = trace["step_live"]
    assert switch(trace) == (5 / 20, 2)
    assert stays_on(trace)
    trace["step_tokens"] = [2, 4, 4, 2, 2] * 4
    assert not stays_on(trace)


def test_main_table(heads: Path, tmp_path: Path) -> None:
    arms = {
        "none": (2.0, 0, 0, 0),
        "self_draft": (2.2, 80, 82, 12),
        "self_draft_toggle": (2.0, 0, 0, 0),
        "self_draft_adaptive": (1.9, 80, 82, 12),
    }
    drafts = comparison(tmp_path / "self", arms, requantize_s=0.02)
    runs = {"self_drafts": drafts, "heads": heads, **untrained(tmp_path / "untrained", [5], on_from=3)}
    section = made("efficient_rollout_main", runs, tmp_path)
    assert verdicts(section) == [False, True, True, True, True, True, True, True]
    assert section.lines[0].claimed == "-8.2 / +6.7 / -5.9"
    assert section.lines[0].replay == "-28.2 / -21.7 / -25.2"
    assert section.lines[0].engine == "+10.0 %"
    assert section.lines[-1].engine == "-20.0 % / -25.0 % / -30.0 %"
    assert section.table is not None
    assert section.table.rows[0] == [
        "self-draft, always on",
        "0.020",
        "7.67 / 6.83",
        "97.6%",
        "5.00",
        "+10.0 %",
        "+6.7 %",
    ]
    assert section.table.rows[1][2:4] == ["- / -", "-"]


def test_what_drafts(tmp_path: Path) -> None:
    def counted(right: float) -> dict[str, Any]:
        taus = {str(k): 1 + right * k for k in range(1, 8)}
        likeliest = {k: tau - 0.1 for k, tau in taus.items()}
        return {
            **{"argmax": right - 0.1, "coupled": right, "one_minus_tv": right},
            **{"tau": taus, "tau_likeliest": likeliest},
        }

    rights = {"w8": 0.99, "w4": 0.9, "eagle3": 0.6, "w8, older": 0.9, "w4, older": 0.8, "eagle3, older": 0.61}
    found = {"positions": 18, "drafters": {name: counted(right) for name, right in rights.items()}}
    (tmp_path / "counts").mkdir()
    (tmp_path / "counts" / "result.json").write_text(json.dumps(found))
    (tmp_path / "counts" / "config.yaml").write_text("trainer: {temperature: 1.0}")
    section = made("efficient_rollout_weights", {"counts": tmp_path / "counts"}, tmp_path)
    assert verdicts(section) == [True, True, True, False]
    assert "EAGLE-3 -0.0100" in section.orderings[3].evidence
    assert section.table is not None
    assert section.table.rows[0][:3] == ["W8", "3.94 / 5.87 / 7.79", "3.97 / 5.95 / 7.93"]
    assert len(section.tables()) == 3
