"""rank_run.py in server mode and colocated. Usage: server_run.py URL_OF_DAS URL_OF_NONE POLICY FOLDER

It writes FOLDER/results.json: what each training did, by name.
"""

import json
import sys
from pathlib import Path

from rank_run import train

if __name__ == "__main__":
    das_url, none_url, policy, out = sys.argv[1:]
    folder = Path(out)
    results = {"colocated": train("none", policy, folder, {})}
    for name, method, url in (("das", "das", das_url), ("none", "none", none_url), ("again", "das", das_url)):
        further = {"vllm_mode": "server", "vllm_server_base_url": url}
        results[name] = train(method, policy, folder, further, asks=name == "das")
    (folder / "results.json").write_text(json.dumps(results))
