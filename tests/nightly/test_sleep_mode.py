"""TRL's sleep mode, with an engine that stands in for one that can sleep: order of calls, and the same training."""

import json
from pathlib import Path

from scripts import ROOT, exact, run_script

STEPS = 3


def test_an_engine_that_sleeps_between_rollouts_trains_alike(repetitive_policy: str, tmp_path: Path) -> None:
    run_script(ROOT / "tests/trl/sleep_run.py", repetitive_policy, tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    awake, asleep = results["awake"], results["asleep"]
    assert asleep["result"] == awake["result"]
    assert exact([asleep]) == exact([awake])
    calls = json.loads((tmp_path / "calls.json").read_text())
    # The comparison loads tensors once more. The probe and the rollout generate when all is awake.
    rollout = ["wake weights", "load_weights", "wake kv_cache", "generate", "sleep 2"]
    assert calls == ["sleep 2", *rollout * (STEPS + 1)]  # the last one is the evaluation
