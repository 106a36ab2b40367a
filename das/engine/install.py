"""`das.install()`: the one function that patches vLLM in a process; and `speculative_config`, which alone asks for an
engine of das.

{"method": "das", "budget": {"name": "fixed"}} stands for all arguments that das.engine_arguments("das",
budget={"name": "fixed"}) returns, on command lines, in LLM(...), and in frameworks that hand this one argument on.

- EngineArgs.create_engine_config: replaced once in each process. Methods that vLLM knows itself stay vLLM's.
"""

import os
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from das.drafter import make_drafter
from das.engine.build import engine_arguments
from das.engine.model_code import refuse_model_code
from das.engine.patches.front_end import patch_front_end
from das.engine.patches.replace import patch
from das.engine.settings import BITS, METHODS, check_exact
from das.engine.versions import silence_known
from das.general.errors import EngineError

# Environment variables for vLLM's batch-invariant kernels, which all engines of a process then use.
INVARIANT = {
    "VLLM_BATCH_INVARIANT": "1",
    # vLLM then also replaces torch's batched product in the trainer, by a Triton kernel. In Triton's default TF32 a
    # rotary embedding's angle would be wrong by .45 rad at position 1,000.
    "TRITON_F32_DEFAULT": "ieee",
}
_set: list[str] = []  # variables that `turn_invariant` has set
OF_DAS = tuple(row.name for row in METHODS.values() if row.proposes or row.name == "none")


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
        turn_invariant()
    patch_front_end()
    take_one_json()


def turn_invariant() -> None:
    """Let all engines of this process use vLLM's batch-invariant kernels, until `forget`. What is set already stays."""
    for name, value in INVARIANT.items():
        if name not in os.environ:
            _set.append(name)
            os.environ[name] = value


def forget() -> None:
    """Remove the variables that `turn_invariant` has set."""
    while _set:
        os.environ.pop(_set.pop(), None)


@cache
def take_one_json() -> None:
    """Replace EngineArgs.create_engine_config in this process. A second call does nothing."""
    from vllm.engine.arg_utils import EngineArgs

    patch(EngineArgs, "create_engine_config", _of_one_json)


def _of_one_json(original: Callable[..., Any], arguments: Any, *args: Any, **kwargs: Any) -> Any:
    """arguments: vLLM's EngineArgs. Raises EngineError in one line if they contradict the JSON."""
    given = arguments.speculative_config
    if isinstance(given, dict) and given.get("method") in OF_DAS:
        expand(arguments, dict(given))
    return original(arguments, *args, **kwargs)


def expand(arguments: Any, options: dict[str, Any]) -> None:
    """Set the arguments of an engine of das. options: of das.engine_arguments(), such as method and drafter.

    What a worker would refuse amid tracebacks of two processes is refused here, in one line.
    """
    untouched = type(arguments)  # its class attributes are vLLM's defaults
    # The worker's class is checked below. An extension adds methods of a module that the user named and has installed.
    others = vars(arguments).keys() - {"worker_cls", "worker_extension_cls"}
    refuse_model_code({name: getattr(arguments, name) for name in others})
    try:
        chosen = {"speculative_config": None, **engine_arguments(**options)}
        if options.get("drafter", {}).get("warm") is not None:
            make_drafter(options["drafter"])  # reads the saved history, which may be damaged
    except (TypeError, ValueError) as error:
        raise EngineError(f"speculative_config={options}: {error}") from None
    chosen["additional_config"] = {**(arguments.additional_config or {}), **chosen["additional_config"]}
    for name in ("worker_cls", "logprobs_mode", "async_scheduling"):
        own = getattr(arguments, name)
        if own not in (getattr(untouched, name), chosen[name]):
            raise EngineError(
                f"{name}={own!r}: speculative_config asks for das, which needs {chosen[name]!r}: leave it out"
            )
    for name, value in chosen.items():
        setattr(arguments, name, value)
