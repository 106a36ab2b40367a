"""Replace functions of vLLM and TRL, for good on an object or for a while in a module that others share; and all
attributes that das sets on objects of vLLM, with the reasons."""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from das.engine.versions import UnsupportedVersion, installed

_replacing = threading.RLock()
# What das sets on objects of vLLM beside the methods that `patch` wraps. Below das/engine only das/models/self_draft.py
# sets one, for as long as it drafts: quant_method of linear layers, which then compute with quantized weights.
ATTRIBUTES = {
    # of VllmConfig and its parts, before the engine is built
    "use_v2_model_runner": "engines of das run on the second model runner, also where vLLM refuses it",
    "async_scheduling": "vLLM refuses it for drafters on the host and on a CPU",
    "cudagraph_capture_sizes": "vLLM's list ends at 512 rows, and drafts need more",
    "backend": "of attention: FlashAttention 3 is not batch-invariant for small heads",
    "num_gpu_blocks": "the scheduler must not know the blocks into which self-drafts write",
    "eagle_aux_hidden_state_layer_ids": "the second runner does not look into a head's eagle_config",
    # of the model runner and its parts
    "sample": "of the runner: tokens go to drafter and meter; of the sampler: noise is keyed",
    "rejection_sampler": "a drafted token is accepted if it equals the sampled one",
    "adaptive_verification": "of the runner, while it prepares a pass: the device decides the lengths of drafts",
    "draft_tokens_handler": "vLLM's says that every request drafted the longest draft",
    "sample_draft": "of vLLM's speculator: drafts are drawn with the verifier's noise",
    # of linear layers and experts on a CPU
    "das_repack": "packs new weights: vLLM drops what it has packed",
    "das_experts": "the packed weights of experts, beside the plain ones",
    "process_weights_after_loading": "vLLM would pack the weights and drop them",
    "cpu_linear": "a single row gets the bits of a row among several",
    # of the front end
    "speculative_config": "None where das drafts: it is read to refuse min_p and logit_bias with drafts",
    "das_seeds": "of requests that bring none",
    "das_refuses_stops": "whether drafts of vLLM's own would change tokens behind stop strings (0.31)",
    "das_may_force": "whether requests may emit recorded responses",
    "das_rollouts_alone": "whether requests that name no problem get no drafts",
}


def put(owner: Any, **values: Any) -> None:
    """Set attributes of an object of vLLM, of those in ATTRIBUTES."""
    for name, value in values.items():
        if name not in ATTRIBUTES:
            raise KeyError(f"{name}: add it to das.engine.patches.replace.ATTRIBUTES, with the reason")
        setattr(owner, name, value)


def patch(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace owner.name by a function that calls `replacement(original, ...)`. An object's class is left alone."""
    original = required(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, patched)


@contextmanager
def replaced(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Inside the `with` block, owner.name calls `replacement(original, ...)`. Only one thread at a time may be inside,
    so that the original comes back."""
    with _replacing:
        original = required(owner, name)
        held = inspect.getattr_static(owner, name)

        def replacing(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(owner, name, staticmethod(replacing) if isinstance(held, staticmethod) else replacing)
        try:
            yield
        finally:
            setattr(owner, name, held)


def required(owner: Any, name: str) -> Any:
    """Returns owner.name. Raises UnsupportedVersion with a one-line message if vLLM or TRL has no such name."""
    if not hasattr(owner, name):
        kind = owner if isinstance(owner, ModuleType | type) else type(owner)
        package = (kind.__name__ if isinstance(kind, ModuleType) else kind.__module__).partition(".")[0]
        version = installed(package, f"{package}-cpu")
        raise UnsupportedVersion(
            f"{package} {version}: {kind.__name__} has no {name}, which das replaces: install {package} again, or a "
            "version that das supports"
        )
    return getattr(owner, name)
