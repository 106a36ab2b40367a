"""Lists TRL's trainers that roll out with vLLM, each with the method that rolls out a batch or the reason to refuse
the trainer."""

from collections.abc import Mapping, Sequence
from typing import Any

COLLATED = "_fill_buffer"  # the method of trainers that collate their rows, of which only prompts are left
# For each class, by its full name, the method that rolls out a batch. The batch is its first argument.
ROLLS_OUT = {
    "trl.trainer.grpo_trainer.GRPOTrainer": "_generate_and_score_completions",  # and of GMPOTrainer, a subclass
    "trl.trainer.rloo_trainer.RLOOTrainer": "_generate_and_score_completions",
    "trl.trainer.distillation_trainer.DistillationTrainer": "_generate_and_score_completions",
    "trl.experimental.sdpo.sdpo_trainer.SDPOTrainer": "_prepare_training_batch",
    "trl.experimental.sdft.sdft_trainer.SDFTTrainer": "_prepare_training_batch",
    "trl.experimental.gold.gold_trainer.GOLDTrainer": COLLATED,
    "trl.experimental.iw_opd.iw_opd_trainer.IWOPDTrainer": COLLATED,
}

# This trainer rolls out while it trains. das replaces its worker. It asks for samples in the method below.
ASYNC_GRPO = "trl.experimental.async_grpo.async_grpo_trainer.AsyncGRPOTrainer"
ASKS_FOR_SAMPLES = "get_train_dataloader"

REFUSED = {
    "trl.experimental.async_distillation.async_distillation_trainer.AsyncDistillationTrainer": (
        "rolls out on a server, while it trains"
    ),
    "trl.experimental.server_distillation.server_distillation_trainer.ServerDistillationTrainer": (
        "asks a server for the teacher's log-probs, which were never tried beside das"
    ),
    "trl.experimental.online_dpo.online_dpo_trainer.OnlineDPOTrainer": (
        "builds a vLLM engine of its own, whose weights das cannot check"
    ),
}


def full_name(trainer: type) -> str:
    """Returns the full name of a class, as in the keys of ROLLS_OUT and REFUSED."""
    return f"{trainer.__module__}.{trainer.__qualname__}"


def method_that_rolls_out(trainer: Any) -> str:
    """Returns the name of the method with which this trainer rolls out: ROLLS_OUT of its class or a base class."""
    return next(ROLLS_OUT[name] for name in map(full_name, type(trainer).__mro__) if name in ROLLS_OUT)


def batch_rows(batch: Any) -> Sequence[Mapping[str, Any]]:
    """Returns the rows of a batch that a trainer will roll out. A collated batch has only padded prompts, no rows."""
    return [{"prompt": prompt.tolist()} for prompt in batch["prompts"]] if isinstance(batch, dict) else batch
