"""Runs one part: python -m experiments.gpu.child MODULE:FUNCTION FOLDER CACHE gpu|cpu. Writes FOLDER/verdict.json."""

import json
import os
import sys
import traceback
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from das.process import die_with_parent
from experiments.gpu.verdict import Scale, Verdict
from experiments.run.run_folder import write_text

VERDICT = "verdict.json"


def main() -> None:
    """Run the part and write its verdict. An exception also becomes a verdict."""
    die_with_parent()
    function, folder, cache, device = sys.argv[1:]
    module, _, name = function.partition(":")
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    try:
        verdict: Verdict = getattr(import_module(module), name)(Scale(device == "gpu", Path(folder), Path(cache)))
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict(False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    write_text(Path(folder) / VERDICT, json.dumps(asdict(verdict)))
    os._exit(0)  # without shutting down remaining engines


if __name__ == "__main__":
    main()
