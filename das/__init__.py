"""Faster rollouts by speculative decoding, verified by the policy: the same distribution, and on request every bit.

- `das.speculate()` speeds up the trainers of a TRL script.
- `das.install()` and `das.engine_arguments()` do the same for your own vLLM engine.
- `das.rollout_sentence(report)` says how the drafts of a rollout did.
- `das.drafter.HistoryDrafter` is the drafter itself, which also works without an engine.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from das.engine.build import engine_arguments as engine_arguments
    from das.engine.install import install as install
    from das.engine.rollouts.report import sentence as rollout_sentence
    from das.trl.speculate import speculate as speculate

# Imported on first use, because the drafter alone needs neither torch nor vLLM nor TRL.
_PLACES = {
    "engine_arguments": ("das.engine.build", "engine_arguments"),
    "install": ("das.engine.install", "install"),
    "rollout_sentence": ("das.engine.rollouts.report", "sentence"),
    "speculate": ("das.trl.speculate", "speculate"),
}
__all__ = ["engine_arguments", "install", "rollout_sentence", "speculate"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'das' has no attribute {name!r}")
    module, attribute = _PLACES[name]
    if name == "speculate":
        from das.engine.versions import names_of_vllm, require_supported, silence_known

        require_supported()  # first, because other versions of vLLM and TRL may lack what is imported next
        silence_known()
        with names_of_vllm():
            import_module(module)
    return getattr(import_module(module), attribute)
