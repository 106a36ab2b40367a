"""Run one part of task=check_gpu in this process, and write FOLDER/verdict.json.

python -m experiments.gpu.child MODULE:FUNCTION[:ARGUMENT] FOLDER CACHE gpu|cpu
"""

import json
import os
import sys
import traceback
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from das.files import write_text
from das.process import die_with_parent
from experiments.gpu.verdict import Scale, Verdict

VERDICT = "verdict.json"


def main() -> None:
    """Run the part and write its verdict. An exception also becomes a verdict."""
    die_with_parent()
    function, folder, cache, device = sys.argv[1:]
    module, name, *arguments = function.split(":")
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    try:
        scale = Scale(device == "gpu", Path(folder), Path(cache))
        verdict: Verdict = getattr(import_module(module), name)(scale, *arguments)
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict(False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    write_text(Path(folder) / VERDICT, json.dumps(asdict(verdict)))
    os._exit(0)  # ends at once, without shutting down the engines


if __name__ == "__main__":
    main()
