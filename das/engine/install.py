"""`das.install()`: the one function that patches vLLM in a process."""

import torch

from das.engine import environment
from das.engine.one_json import take_one_json
from das.engine.patches.front_end import patch_front_end
from das.engine.settings import BITS, check_exact
from das.engine.versions import silence_known


def install(exact: str | None = None) -> None:
    """Prepare this process for engines of das: patch vLLM's front end, and silence what libraries say at each start.

    Call it before `LLM(**das.engine_arguments())`. `das.speculate()` calls it itself. It changes no thread count, no
    engine that does not ask for das (das/engine/patches/) and, but for `exact`, no environment variable.
    Processes that nobody prepared, such as those of `vllm serve`, need das's vLLM plug-in (das/engine/plugin.py), which
    pip installs with das.

    exact: "bits" turns on vLLM's batch-invariant kernels on a GPU, by environment variables, for all engines of this
    process until `das.speculate("off")`; "distribution" or None leaves them as they are (docs/exactness.md).
    Raises UnsupportedVersion when vLLM is too old for the patches, ValueError for another `exact`.
    """
    check_exact(exact)
    silence_known()
    if exact == BITS and torch.cuda.is_available():
        environment.turn_invariant()
    patch_front_end()
    take_one_json()
