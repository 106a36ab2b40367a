"""Figures by which rollouts are compared, and the file of recorded ones."""

import json

import numpy as np
import pytest
from made_inputs import TRACES as MADE_TRACES
from made_inputs import write_traces
from yaml import safe_load

from analysis.likeness_figure import likeness_figure
from experiments.recorded.drafter_replay import made_up_problems
from experiments.recorded.likeness import EDGES, EPOCHS, FIGURES, PAPERS, TRACES, likeness, read_trace, shared_grams
from experiments.tasks.policy import COLUMNS, likeness_table


def test_shared_grams() -> None:
    first = np.arange(12)  # five 8-grams
    shares = shared_grams([first, np.concatenate([first[:9], [99]]), np.arange(50, 60), first[:5]])
    assert shares == pytest.approx([2 / 5, 2 / 3, 0.0])  # the last one is too short to have any
    assert shared_grams([first, first + 1]) == pytest.approx([4 / 5, 4 / 5])  # places do not matter
    assert shared_grams([first, first[::-1]]) == [0.0, 0.0]  # order does


def test_likeness_of_made_up_rollouts() -> None:
    problems = made_up_problems(2, 20, 200, seed=0)  # two epochs of eight siblings; four are left over
    problems[0][1][0] = problems[0][1][0][:50]
    figures = likeness(problems)
    assert figures["responses"] == 32
    assert figures["median_length"] == figures["longest"] == 200
    assert sum(figures["histogram"]) == pytest.approx(1, abs=1e-3)
    assert 0 < figures["similarity"] < 1
    first, second = figures["accepted_by_epoch"]
    assert first < figures["accepted_per_round"] < second  # the second epoch has a history
    longer = likeness(made_up_problems(2, 40, 200, seed=0))  # five epochs, of which the first three count
    assert min(longer["accepted_by_epoch"]) < longer["accepted_per_round"] < longer["accepted_by_epoch"][2]
    first_three = likeness([(name, texts[:24]) for name, texts in made_up_problems(2, 40, 200, seed=0)])
    assert longer["accepted_per_round"] == first_three["accepted_per_round"]
    with pytest.raises(ValueError, match="8 responses"):
        likeness(made_up_problems(1, 7, 20, seed=0))


def test_the_kept_figures(tmp_path_factory: pytest.TempPathFactory) -> None:
    recorded, published = json.loads(FIGURES.read_text()), safe_load(PAPERS.read_text())
    assert recorded.keys() == TRACES.keys()
    figures = {figure for figure, _ in COLUMNS.values()}
    for line in recorded.values():
        assert figures | {"source", "histogram", "accepted_by_epoch"} <= line.keys()
        assert line["accepted_per_round"] == pytest.approx(np.mean(line["accepted_by_epoch"][:EPOCHS]))
        assert len(line["histogram"]) == len(EDGES) - 1
    for line in (published["wanted"], *published["papers"].values()):
        assert line.keys() <= figures | {"source"}
    own = {**recorded["rg_llama3b_rl"], "entropy": 0.25}
    table = likeness_table(own, recorded, published).strip().splitlines()
    assert len(table) == 2 + 2 + len(recorded) + len(published["papers"])
    assert "0.250" in table[2]
    assert "120 to 300" in table[3]
    assert "at least 700" in table[3]
    picture = tmp_path_factory.mktemp("figure") / "likeness.png"
    likeness_figure({"small policy": own, **recorded}, EDGES.tolist(), picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_trace_is_read_without_further_prompts_of_a_problem(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = write_traces(tmp_path_factory.mktemp("made") / "traces")
    problems = {name: len(read_trace(folder / f"{name}.jsonl.gz")) for name in MADE_TRACES}
    assert problems["steer_r1d_qwen14b_pos0to3"] == 2  # of 8, with four prompts of each
    assert problems["areal_deepscaler_base"] == 2
