"""Lists TRL's trainers that roll out with das, and those that are refused, each with the reason."""

from typing import Any

METHOD = "_generate_and_score_completions"  # rolls out a batch of rows, its first argument
ROLLS_OUT = (
    "trl.trainer.grpo_trainer.GRPOTrainer",  # and GMPOTrainer, a subclass
    "trl.trainer.rloo_trainer.RLOOTrainer",
    "trl.trainer.distillation_trainer.DistillationTrainer",
)
_OWN_WAY = "rolls out in a way of its own, which das does not follow"
_ON_SERVER = "rolls out on a server, while it trains"
REFUSED = {
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


def full_name(trainer: type) -> str:
    """Returns the full name of a class, as in ROLLS_OUT and REFUSED."""
    return f"{trainer.__module__}.{trainer.__qualname__}"
