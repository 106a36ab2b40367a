"""rank_run.py on two ranks without a GPU, each with a shard. Usage: sharded_run.py fsdp|zero PHASE POLICY FOLDER

PHASE: whole    trains without drafts and with them. The `result` is a digest of the whole weights, and what a sync
                says when a tensor is spoilt on its way into one rank's engine.
       killed   trains with drafts until all ranks are killed, when the checkpoint of step 2 is written.
       resumed  goes on from there.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from rank_run import train
from torch import distributed
from transformers import TrainerCallback
from trl.generation.vllm_generation import VLLMGeneration

from das.general import ranks
from das.general.errors import WeightSyncError
from das.weights.weight_check import whole
from experiments.digests import tensors_digest

SPOILT = "model.layers.1.mlp.down_proj.weight"
KILLED_AT = 2
SHARDED: dict[str, dict[str, Any]] = {
    "fsdp": {"model_init_kwargs": {"distributed_config": {"fsdp_size": 2}}},
    # As after `accelerate launch` with a config for DeepSpeed. `deepspeed` in GRPOConfig would drop the backend.
    "zero": {"use_cpu": False, "ddp_backend": "gloo"},
}


class Killer(TrainerCallback):
    def on_save(self, args: Any, state: Any, *others: Any, **kwargs: Any) -> None:
        if state.global_step == KILLED_AT:
            distributed.barrier()  # the checkpoint is whole
            os.kill(os.getpid(), signal.SIGKILL)


def ended(trainer: Any) -> dict[str, str]:
    """The digest of the weights as TRL gathers them, and what a sync with a spoilt tensor says."""
    gathered = whole(VLLMGeneration._iter_named_params(trainer.vllm_generation))
    return {"weights": tensors_digest(tensor for _, tensor in gathered), "sync": spoilt_sync(trainer)}


def spoilt_sync(trainer: Any) -> str:
    """What a sync says if rank 1's engine gets other numbers than the trainer has."""
    generation = trainer.vllm_generation
    push = generation.push_weights

    def spoilt_push() -> None:
        push()
        model = generation.llm.llm_engine.model_executor.driver_worker.model_runner.model
        model.get_parameter(SPOILT).data.add_(1)

    if ranks.rank() == 1:
        generation.push_weights = spoilt_push
    generation.weight_sample.every = 1
    try:
        generation.sync_weights()
    except WeightSyncError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    how, phase, policy, folder = sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])
    folder.mkdir(parents=True, exist_ok=True)
    further = {**SHARDED[how], "save_strategy": "steps", "save_steps": 1}
    resume = folder / "trl" / f"checkpoint-{KILLED_AT}" if phase == "resumed" else None
    callbacks = [Killer()] if phase == "killed" else []
    for method in ("none", "das") if phase == "whole" else ("das",):
        result = train(method, policy, folder, further, ended, callbacks=callbacks, resume=resume)
        (folder / f"{phase}_{method}_rank{ranks.rank()}.json").write_text(json.dumps(result))
