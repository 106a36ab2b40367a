"""rank_run.py in server mode, twice. Usage: server_run.py URL_OF_DAS POLICY FOLDER

It writes FOLDER/results.json: what each training did, by name.
"""

import json
import sys
from pathlib import Path

from rank_run import train

if __name__ == "__main__":
    url, policy, out = sys.argv[1:]
    folder = Path(out)
    further = {"vllm_mode": "server", "vllm_server_base_url": url}
    results = {name: train("das", policy, folder, further, asks=name == "das") for name in ("das", "again")}
    (folder / "results.json").write_text(json.dumps(results))
