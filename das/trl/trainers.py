"""Lists TRL's trainers that roll out with das, and those that are refused, each with the reason.

Patches of TRL that let its trainers roll out with an engine of das. They replace these names of TRL:

- VLLMGeneration, replaced only while a trainer is built (`generation_backend`): the arguments of TRL's colocated LLM
  are fixed, without speculative_config, dtype or eager mode.
- __init__ of the trainers in das/trl/trainers.py, and the method with which each rolls out, from `das.speculate()`
  to `das.speculate("off")` (`patch_trainers`): trainers must be built with the other backend, and TRL tells its backend
  token ids only, neither rows nor the step. Experimental trainers take seconds to import, so a class is patched when it
  is imported: that is what _BaseTrainer.__init_subclass__ is for.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from das.engine.patches.replace import patch, required
from das.engine.versions import require_trl

METHOD = "_generate_and_score_completions"  # rolls out a batch of rows, its first argument
GRPO = "trl.trainer.grpo_trainer.GRPOTrainer"
ROLLS_OUT = (
    GRPO,  # and GMPOTrainer, a subclass
    "trl.trainer.rloo_trainer.RLOOTrainer",
    "trl.trainer.distillation_trainer.DistillationTrainer",
)
_OWN_WAY = "rolls out in a way of its own, which das does not follow"
_ON_SERVER = "rolls out on a server, while it trains"
OLDER = {  # TRL 1.16 has them no more
    "trl.experimental.ssd.ssd_trainer.SSDTrainer": _OWN_WAY,
    "trl.experimental.grpo_with_replay_buffer.grpo_with_replay_buffer_trainer.GRPOWithReplayBufferTrainer": (
        "trains on rollouts of earlier steps, which was never tried with das"
    ),
}
REFUSED = {
    **OLDER,
    "trl.experimental.sdpo.sdpo_trainer.SDPOTrainer": _OWN_WAY,
    "trl.experimental.sdft.sdft_trainer.SDFTTrainer": _OWN_WAY,
    "trl.experimental.gold.gold_trainer.GOLDTrainer": _OWN_WAY,
    "trl.experimental.iw_opd.iw_opd_trainer.IWOPDTrainer": _OWN_WAY,
    "trl.experimental.async_grpo.async_grpo_trainer.AsyncGRPOTrainer": _ON_SERVER,
    "trl.experimental.async_distillation.async_distillation_trainer.AsyncDistillationTrainer": _ON_SERVER,
    "trl.experimental.server_distillation.server_distillation_trainer.ServerDistillationTrainer": (
        "asks a server for the teacher's log-probs, which were never tried beside das"
    ),
    "trl.experimental.online_dpo.online_dpo_trainer.OnlineDPOTrainer": (
        "builds a vLLM engine of its own, whose weights das cannot check"
    ),
}


def refusal(trainer: Any) -> str:
    """Returns in one line why das does not work with this trainer of REFUSED, and what to do."""
    name, why = next((name, REFUSED[name]) for name in map(full_name, type(trainer).__mro__) if name in REFUSED)
    return f'{name.split(".")[-1]} {why}: call das.speculate("off") before it is built'


def is_grpo(trainer: Any) -> bool:
    """Returns whether this is TRL's GRPOTrainer, or a class of the user's made from it."""
    names = map(full_name, type(trainer).__mro__)
    return next(name for name in names if name.startswith("trl.")) == GRPO


def full_name(trainer: type) -> str:
    """Returns the full name of a class, as in ROLLS_OUT and REFUSED."""
    return f"{trainer.__module__}.{trainer.__qualname__}"


Replacements = Mapping[str, Callable[..., Any]]  # new methods, by name
_patched_methods: list[tuple[type, str, Any]] = []  # patched class of TRL, method name, TRL's method


@contextmanager
def generation_backend(backend: Callable[..., Any], trainer: Any) -> Iterator[None]:
    """Inside the `with` block, `trainer`, which is being built, gets `backend` in place of TRL's own VLLMGeneration.

    Afterwards TRL is as it was. Raises UnsupportedVersion if the hook was not tested with this version of TRL.
    """
    require_trl()
    from trl.generation import vllm_generation

    original = required(vllm_generation, "VLLMGeneration")
    # Some trainers import the class when they are built. The modules of others imported it at their top.
    modules = {sys.modules[owner.__module__] for owner in type(trainer).__mro__ if owner.__module__.startswith("trl.")}
    places = [module for module in (vllm_generation, *modules) if vars(module).get("VLLMGeneration") is original]
    for module in places:
        vars(module)["VLLMGeneration"] = backend
    try:
        yield
    finally:
        for module in places:
            vars(module)["VLLMGeneration"] = original


def patch_trainers(replacements: Mapping[str, Replacements]) -> None:
    """Replace methods of TRL's trainers until `unpatch_trainers` is called. Trainers that are imported later are
    patched, too. Patches of an earlier call are replaced.

    replacements: new methods by full name of the class. Each is called as `replacement(original, trainer, ...)`.
    Raises UnsupportedVersion for versions of TRL with which the hooks were not tested, or that lack one.
    """
    require_trl()
    from trl.trainer.base_trainer import _BaseTrainer

    def patch_methods(trainer: type) -> None:
        for name, replacement in replacements.get(f"{trainer.__module__}.{trainer.__qualname__}", {}).items():
            _patched_methods.append((trainer, name, required(trainer, name)))
            patch(trainer, name, replacement)

    def patch_new(trainer: type, **kwargs: Any) -> None:
        super(_BaseTrainer, trainer).__init_subclass__(**kwargs)
        patch_methods(trainer)

    unpatch_trainers()
    _BaseTrainer.__init_subclass__ = classmethod(patch_new)
    for trainer in _subclasses(_BaseTrainer):
        patch_methods(trainer)


def unpatch_trainers() -> None:
    """Give TRL's trainers back the methods that `patch_trainers` replaced."""
    from trl.trainer.base_trainer import _BaseTrainer

    if "__init_subclass__" in vars(_BaseTrainer):
        del _BaseTrainer.__init_subclass__
    while _patched_methods:
        setattr(*_patched_methods.pop())


def _subclasses(parent: type) -> list[type]:
    """Returns all classes below `parent` that exist now."""
    children: list[type] = parent.__subclasses__()
    return children + [found for child in children for found in _subclasses(child)]
