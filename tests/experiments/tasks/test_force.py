"""task=force: a whole run with every kind of arm, what it refuses, and what its numbers are made of."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from scripts import run_script
from steps_on_disk import json_lines

from analysis.force_table import force_table
from das.errors import EngineError
from experiments.harness.replays.forced_engines import as_recorded, set_seats
from experiments.harness.replays.timed import Timed
from experiments.run.errors import CONFIGS, UserError
from experiments.settings.config import run_config
from experiments.simulate.workload import workload
from experiments.small_policy.shapes import SHAPES, shape_of
from experiments.tasks.force import arm_configs, check_live, measured


def write_recording(path: Path, vocabulary: int = 1000) -> Path:
    """Two problems with 8 responses each; the second half of each repeats the first of another."""
    rng = np.random.default_rng(0)
    rows = []
    for problem in ("a", "b"):
        texts = [rng.integers(0, vocabulary, 20).tolist() for _ in range(3)]
        rows += [{"problem_id": problem, "response_ids": texts[i % 3] + texts[(i + 1) % 3][: 4 + i]} for i in range(8)]
    path.write_text(json_lines(rows))
    return path


def task(**settings: Any) -> Any:
    return OmegaConf.merge(OmegaConf.load(CONFIGS / "task" / "force.yaml"), settings)


@pytest.mark.slow
def test_all_arms_emit_the_recording(tmp_path: Path, given_prices: str) -> None:
    path = write_recording(tmp_path / "r.jsonl")
    arms = ["none", "stock", "ngram", "das"]
    run_script(
        "run.py", "task=force", "task.shape=tiny", "task.siblings=2", "task.epochs=2", "task.live=[4,1]",
        f"task.rollouts={path}", f"task.arms=[{','.join(arms)}]",
        f"out={tmp_path}", f"cache={tmp_path}", f"budget.latency={given_prices}",
    )  # fmt: skip
    (folder,) = (tmp_path / "force").iterdir()
    result = json.loads((folder / "result.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    each = sum(row["tokens"] for row in rows if row["arm"] == "none")
    assert result["forced"] == {"tokens": 3 * each, "equal": True}, "stock emits other tokens"
    assert list(result["arms"]) == list(result["ratio_to_none"]) == list(result["ratio_to_stock"]) == arms
    assert result["arms"]["das"]["tokens_per_pass"] > 1.0
    assert result["arms"]["none"]["tokens_per_pass"] == result["arms"]["stock"]["tokens_per_pass"] == 1.0
    for ratios, one in (("ratio_to_none", "none"), ("ratio_to_stock", "stock")):
        assert result[ratios]["das"]["processor_s"].keys() == {"overall", "by_live"}
        assert result[ratios][one]["rollout_s"] == {"overall": 1.0, "by_live": {"4": 1.0, "1": 1.0}}
    assert set(result["replay_error"]) == {"none", "das"}
    assert result["ratio_at_row_price"]["0"]["das"]["overall"] < 1.0
    for row in rows:
        assert row["decode_steps"] >= row["length_max"] or row["arm"] in ("das", "ngram")
        if row["arm"] == "none" and row["live"] == 1:
            assert row["decode_steps"] == row["tokens"], "one request at a time: the others wait"
    assert (folder / "force.png").stat().st_size > 0


def test_what_the_machine_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        UserError, match=r"a CPU serves at most 8 requests of shape 0\.6b at once: set task\.live=\[8,2\]"
    ):
        check_live(shape_of("0.6b"), task(shape="0.6b"))
    check_live(shape_of("0.6b"), task(shape="0.6b", live=[8, 2]))
    check_live(shape_of("30m"), task())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_live(shape_of("0.6b"), task(shape="0.6b"))


def test_large_shapes_are_bfloat16_unless_the_user_wants_another_type() -> None:
    small = {"tiny", "30m", "100m"}
    assert {name: shape.dtype for name, shape in SHAPES.items()} == {
        name: "float32" if name in small else "bfloat16" for name in (*small, "0.6b", "1.7b", "7b", "8b", "8b_thin")
    }
    assert SHAPES["0.6b"].vocabulary == 151_936
    for overrides, dtype in (([], "bfloat16"), (["engine.dtype=float32", "arm=das"], "float32")):
        arms = arms_of("0.6b", "task.arms=[none,stock]", *overrides)
        assert {name: (arm.arm.name, arm.engine.dtype) for name, arm in arms.items()} == {
            "none": ("none", dtype), "stock": ("stock", dtype)
        }  # fmt: skip


def arms_of(shape: str, *overrides: str) -> dict[str, Any]:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        given = ["task=force", *overrides]
        return arm_configs(run_config(compose("config", overrides=given)), SHAPES[shape], given)


def test_arms() -> None:
    varied = arms_of("30m", "+vary.drafter.window=[1,16]")
    assert list(varied) == ["none", "stock", "window_1", "window_16"]
    assert varied["window_1"].drafter.window == 1


def result_of(arm_s: dict[str, float]) -> dict[str, Any]:
    """What is measured where each arm takes so many seconds a rollout, twice that with 2 live requests."""

    def rolled(seconds: float, live: int, drafts: bool) -> Timed:
        row = {"rollout_s": seconds * (2 if live == 2 else 1), "processor_s": seconds, "tokens": 100}
        row["passes"] = 50 if drafts else 100
        return Timed({**row, "drafted": 9, "accepted": 3}, {}, True)

    results = {
        arm: {(live, epoch): rolled(seconds, live, arm == "das") for live in (8, 2) for epoch in (1, 2)}
        for arm, seconds in arm_s.items()
    }
    at_price = {"0.5": {"das": {"overall": 0.4, "by_live": {"8": 0.5, "2": 0.3}}}}
    return measured(results, [8, 2], "stock") | {"replay_error": {"das": -0.04}, "ratio_at_row_price": at_price}


def test_ratios_are_those_of_totals() -> None:
    result = result_of({"none": 4.0, "stock": 5.0, "das": 2.0})
    assert result["forced"] == {"tokens": 800, "equal": True}
    assert result["arms"]["das"] == {
        "rollout_s": 12.0, "tokens_per_pass": 2.0, "drafted": 36, "accepted": 12, "by_live": {"8": 2.0, "2": 2.0}
    }  # fmt: skip
    assert result["ratio_to_none"]["das"]["rollout_s"] == {"overall": 0.5, "by_live": {"8": 0.5, "2": 0.5}}
    assert result["ratio_to_stock"]["das"]["rollout_s"]["overall"] == pytest.approx(0.4)
    table = force_table(result).splitlines()
    assert table[1].split("  ")[0] == "arm"
    assert " ".join(table[-1].split()) == "das 0.5 of measured 0.400 0.500 0.300"
    assert " ".join(table[5].split()) == "das 12.00 0.500 0.500 0.500 0.400 0.400 0.400 0.500 2.00 36 12 -4.0%"
    del result["ratio_to_stock"]
    assert "of stock" not in force_table(result)


def test_recorded_tokens_or_lengths_are_compared() -> None:
    work = workload(["p", "p"], [np.array([1, 2, 3]), np.array([4])], 5)
    assert as_recorded([[1, 2, 3], [4]], work)
    assert not as_recorded([[1, 2, 9], [4]], work)
    assert as_recorded([[1, 2, 9], [4]], work, only_lengths=True)
    assert not as_recorded([[1, 2], [4]], work, only_lengths=True)


def test_another_arms_text_is_no_forced_rollout() -> None:
    rows = {"rollout_s": 1.0, "processor_s": 1.0, "tokens": 5, "passes": 5, "drafted": 0, "accepted": 0}
    results = {
        arm: {(1, 1): Timed(dict(rows), {}, equal)} for arm, equal in (("none", True), ("das", False), ("stock", True))
    }
    assert measured(results, [1], "stock")["forced"] == {"tokens": 10, "equal": False}


def test_a_vllm_without_seats_is_refused() -> None:
    def engine(scheduler: Any) -> Any:
        core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        return SimpleNamespace(llm_engine=SimpleNamespace(engine_core=core))

    scheduler = SimpleNamespace(max_num_active_reqs=8)
    set_seats(engine(scheduler), 2)
    assert scheduler.max_num_active_reqs == 2
    older = SimpleNamespace(max_num_running_reqs=8)
    set_seats(engine(older), 2)
    assert older.max_num_running_reqs == 2
    with pytest.raises(EngineError, match="install a newer vLLM"):
        set_seats(engine(SimpleNamespace()), 2)
