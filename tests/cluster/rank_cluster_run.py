"""What rank_run.py does on several ranks, on a cluster. Usage: rank_cluster_run.py POLICY FOLDER JOB...

A JOB is METHOD:ENGINES, such as das:2; 0 engines: one in the process of each rank. Each rank writes what it did into
FOLDER/METHOD_ENGINES_rankN.json.
"""

import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "trl")]

from rank_run import train  # noqa: E402

from das.general import ranks  # noqa: E402

if __name__ == "__main__":
    policy, folder, *jobs = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    for job in jobs:
        method, engines = job.split(":")
        cluster = {"engines": int(engines), "silent_s": 120.0} if int(engines) else None
        result = train(method, policy, Path(folder), {}, lambda trainer: trainer.vllm_generation.close(), cluster)
        (Path(folder) / f"{method}_{engines}_rank{ranks.rank()}.json").write_text(json.dumps(result))
