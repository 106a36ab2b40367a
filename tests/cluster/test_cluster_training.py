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


def trained(policy: str, folder: Path, *jobs: str) -> dict[str, Any]:
    run_script(SCRIPT, policy, folder, *jobs)
    results: dict[str, Any] = json.loads((folder / "results.json").read_text())
    assert not left_behind()
    return results


def left_behind() -> list[str]:
    """Processes of Ray's engines, and shared memory of Ray."""
    gone = [process.name() for process in psutil.process_iter() if process.name().startswith("ray::EngineActor")]
    return gone + [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith("plasma")]


def equal(results: dict[str, Any], first: str, *others: str) -> None:
    for other in others:
        for name in EXACT:
            assert results[other][name] == results[first][name], (other, name)


def test_one_engine_and_two_train_as_an_engine_in_the_process(repetitive_policy: str, tmp_path: Path) -> None:
    results = trained(repetitive_policy, tmp_path, "none:0", "das:0", "das:1", "das:2", "none:2")
    equal(results, "none:0", "das:0", "das:1", "das:2", "none:2")
    assert results["das:2"]["accepted"] > 0
    assert [step["engines"] for step in results["das:2"]["clusters"]] == [2, 2, 2]
    assert all(len(step["by_engine"]) == 2 for step in results["das:2"]["clusters"])


def test_a_kill_in_every_step_changes_no_bit(repetitive_policy: str, tmp_path: Path) -> None:
    results = trained(repetitive_policy, tmp_path, "none:0", "none:2:kill", "das:2:kill")
    equal(results, "none:0", "none:2:kill", "das:2:kill")
    for job in ("none:2:kill", "das:2:kill"):
        steps = results[job]["clusters"]
        assert all(step["lost_requests"] > 0 for step in steps)
        assert sum(step["restarts"] for step in steps) >= 3  # a busy machine may make an engine silent besides


def test_frozen_and_failing_engines_are_replaced(repetitive_policy: str, tmp_path: Path) -> None:
    results = trained(repetitive_policy, tmp_path, "none:0", "das:2:freeze", "das:2:raise")
    equal(results, "none:0", "das:2:freeze", "das:2:raise")
    for job in ("das:2:freeze", "das:2:raise"):
        assert sum(step["restarts"] for step in results[job]["clusters"]) >= 3


def test_another_engine_starts_again_what_a_slow_one_holds(repetitive_policy: str, tmp_path: Path) -> None:
    """What the slow one still delivers is compared with that, so the run would stop if it differed."""
    results = trained(repetitive_policy, tmp_path, "none:0", "das:2:stall")
    equal(results, "none:0", "das:2:stall")
    steps = results["das:2:stall"]["clusters"]
    assert all(step["lost_requests"] == step["restarts"] == 0 for step in steps)
    assert steps[0]["replayed_requests"] > 0  # later it may be dealt so little that nothing of it starts again
    assert any(row["event"].startswith("slow: ") for row in steps[0]["timeline"])


def test_weights_that_are_broadcast_change_no_bit(repetitive_policy: str, tmp_path: Path) -> None:
    """Also with an engine that dies in each broadcast, and with one that joins and receives alone."""
    jobs = ("das:2:broadcast", "das:2:broadcast:cut", "das:1:broadcast:resize")
    results = trained(repetitive_policy, tmp_path, "none:0", *jobs)
    equal(results, "none:0", *jobs)
    assert sum(step["restarts"] for step in results["das:2:broadcast"]["clusters"]) == 0
    assert sum(step["restarts"] for step in results["das:2:broadcast:cut"]["clusters"]) >= 1


def test_engines_join_and_leave_amid_rollouts(repetitive_policy: str, tmp_path: Path) -> None:
    results = trained(repetitive_policy, tmp_path, "none:0", "das:1:resize")
    equal(results, "none:0", "das:1:resize")
    events = [row["event"] for step in results["das:1:resize"]["clusters"] for row in step["timeline"]]
    assert "left" in events
    assert events.count("joined") > 3  # once in each step, and the engine that was added
