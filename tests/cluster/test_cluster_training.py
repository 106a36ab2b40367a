"""A training on a cluster of engines is the training on one engine, bit for bit, whatever happens to the engines."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripts import run_script

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("cluster_run.py")
EXACT = ("responses", "rewards", "losses", "weights")
TROUBLED = "das:2:distributions:kill,freeze,raise"


def left_behind() -> list[str]:
    """Engines whose Ray is gone. Those of other tests, which may run meanwhile, have one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            parent = process.parent()
            if process.name().startswith("ray::RolloutEng") and (parent is None or parent.name() != "raylet"):
                found.append(process.name())
    return found


@pytest.fixture(scope="module")
def results(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each job computed, one after the other in a process."""
    folder = tmp_path_factory.mktemp("training")
    run_script(SCRIPT, repetitive_policy, folder, "none:0", TROUBLED, limit_s=1800)
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    assert not left_behind()
    return results


def test_a_cluster_trains_as_an_engine_in_the_process(results: dict[str, Any]) -> None:
    for name in EXACT:
        assert results[TROUBLED][name] == results["none:0"][name], name
    assert results[TROUBLED]["accepted"] > 0
    assert set(results[TROUBLED]["remembers"]) == {True}


def test_killed_frozen_and_failing_engines_are_replaced(results: dict[str, Any]) -> None:
    steps = results[TROUBLED]["clusters"]
    events = [row["event"] for step in steps for row in step["timeline"]]
    for why in ("its process died", "it did not answer", "RuntimeError: a fault that a test put here"):
        assert any(event.startswith(f"lost: {why}") for event in events), why
    assert all(step["lost_requests"] > 0 for step in steps)
    assert sum(step["restarts"] for step in steps) >= 3  # a busy machine may make an engine silent besides
