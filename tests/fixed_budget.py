"""Run a script as it is, with a default budget that reads no clock: python tests/fixed_budget.py SCRIPT ARGUMENT ...

The budget `marginal` decides by measured times, so on a busy machine it may choose to draft nothing.
"""

import runpy
import sys
from pathlib import Path

from das.budget import DEFAULT_BUDGET

if __name__ == "__main__":
    assert isinstance(DEFAULT_BUDGET, dict)
    DEFAULT_BUDGET.update(name="fixed", tokens=8)
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
