"""Lists TRL's trainers that roll out with das, and those that are refused, each with the reason."""

from typing import Any

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
