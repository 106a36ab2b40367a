"""Trainings of the harness whose rollouts run ahead, on a cluster and in one process.

Usage: cluster_lag_run.py POLICY FOLDER RUNS

RUNS is JSON: {name: [arm, overrides...]}. In a run whose name ends with "_kill" an engine is killed amid rollout 3.
"""

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "trl")]

from cluster_run import plant  # noqa: E402
from lag_runs import train  # noqa: E402

from das.cluster.cluster import Cluster  # noqa: E402

if __name__ == "__main__":
    policy, folder, runs = sys.argv[1:]
    original = Cluster._hand_out
    for name, (arm, *overrides) in json.loads(runs).items():
        Cluster._hand_out = original  # type: ignore[method-assign]
        if name.endswith("_kill"):
            plant(["", "", "", "kill"])
        train(arm, policy, Path(folder) / name, *overrides)
