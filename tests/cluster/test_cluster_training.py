"""A training on a cluster of engines is the training on one engine, bit for bit, whatever happens to the engines."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripts import run_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="a cluster needs ray, which is not installed: run `make ray`"),
]
SCRIPT = Path(__file__).with_name("cluster_run.py")
EXACT = ("responses", "rewards", "losses", "weights")
TROUBLED = "das:2:distributions:kill,freeze,raise"
SLOW = "das:2:stall"
CUT = "das:2:broadcast:cut"
RESIZED = "das:1:broadcast:distributions:grow,shrink,grow"


def left_behind() -> list[str]:
    """Processes of Ray's engines, and shared memory of Ray."""
    gone = [process.name() for process in psutil.process_iter() if process.name().startswith("ray::EngineActor")]
    return gone + [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("plasma")]


@pytest.fixture(scope="module")
def results(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each job computed, one after the other in a process."""
    folder = tmp_path_factory.mktemp("training")
    run_script(SCRIPT, repetitive_policy, folder, "none:0", SLOW, TROUBLED, CUT, RESIZED, limit_s=1800)
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    assert not left_behind()
    return results


@pytest.mark.parametrize("job", [SLOW, TROUBLED, CUT, RESIZED])
def test_a_cluster_trains_as_an_engine_in_the_process(results: dict[str, Any], job: str) -> None:
    for name in EXACT:
        assert results[job][name] == results["none:0"][name], name
    assert results[job]["accepted"] > 0
    assert set(results[job]["remembers"]) == {"distributions" in job}


def test_killed_frozen_and_failing_engines_are_replaced(results: dict[str, Any]) -> None:
    steps = results[TROUBLED]["clusters"]
    assert steps[0]["lost_requests"] > 0
    assert sum(step["restarts"] for step in steps) >= 3  # a busy machine may make an engine silent besides


def test_another_engine_starts_again_what_a_slow_one_holds(results: dict[str, Any]) -> None:
    """What the slow one still delivers is compared with that, so the run would stop if it differed."""
    steps = results[SLOW]["clusters"]
    assert all(step["lost_requests"] == step["restarts"] == 0 for step in steps)
    assert steps[0]["replayed_requests"] > 0
    assert any(row["event"].startswith("slow: ") for row in steps[0]["timeline"])
    assert [step["engines"] for step in steps] == [2, 2, 2]
    assert all(len(step["by_engine"]) == 2 for step in steps)


def test_an_engine_that_dies_in_a_broadcast_is_replaced(results: dict[str, Any]) -> None:
    assert sum(step["restarts"] for step in results[CUT]["clusters"]) >= 1


def test_engines_join_and_leave_amid_rollouts(results: dict[str, Any]) -> None:
    """One that joins receives the broadcast weights alone."""
    events = [row["event"] for step in results[RESIZED]["clusters"] for row in step["timeline"]]
    assert "left" in events
    assert events.count("joined") > 3  # once in each step, and the engine that was added
