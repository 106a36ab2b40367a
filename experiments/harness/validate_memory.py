"""Refuse, before the arms start, micro-batches whose activations do not fit into the machine's memory.

TRL computes logits in tiles, so a large vocabulary takes no memory of its own. What grows with the micro-batch is what
the forward pass keeps of every token and layer for the backward pass: 1.5 MB a token for SmolLM2-135M.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

from experiments.harness.recorded_text import is_recorded
from experiments.run.errors import UserError
from experiments.settings.config import RunConfig

GIB = 2**30
# Numbers that a layer keeps of each token for the backward pass, in units of the policy's hidden and intermediate size.
# Measured with SmolLM2-135M: 12,500 numbers a layer and token.
_HIDDEN, _INTERMEDIATE = 11, 4
_HELD = 2  # copies of the weights in every arm: the trainer's and the engine's
_TRAINED = 3  # further copies in an arm that trains: gradients and two moments of AdamW
_PROGRAM = 1.5 * GIB  # an arm's libraries and KV cache


def check_memory(arms: Sequence[RunConfig], policy: str) -> None:
    """Refuse arms that need more memory than the machine has. Raises UserError with a smaller micro-batch that fits.

    policy: a folder; a hub id is not checked, and neither is a run on a GPU. The longest possible responses count.
    """
    folder, first = Path(policy), arms[0]
    if torch.cuda.is_available() or not (folder / "config.json").exists():
        return
    shape = json.loads((folder / "config.json").read_text())
    if "intermediate_size" not in shape:
        return
    held = len(arms) if getattr(first.task, "lock_step", False) else 1
    if is_recorded(first) or not getattr(first.task, "train", True):
        return
    trained = 1 if getattr(first.task, "train_once", False) else held
    at_once = min(trained, os.cpu_count() or 1)  # arms that train at the same time
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    room = psutil.virtual_memory().total - held * (_HELD * weights + _PROGRAM) - trained * _TRAINED * weights
    kept = 4 * (_HIDDEN * shape["hidden_size"] + _INTERMEDIATE * shape["intermediate_size"])  # bytes a layer and token
    one = (
        at_once * kept * shape["num_hidden_layers"] * first.engine.max_model_len
    )  # bytes of a micro-batch of one response
    size = first.trainer.arguments["per_device_train_batch_size"]
    if size * one <= room:
        return
    accumulated = first.trainer.arguments.get("gradient_accumulation_steps", 1)
    fitting = max((part for part in range(1, size) if size % part == 0 and part * one <= room), default=1)
    raise UserError(
        f"trainer.per_device_train_batch_size={size}: the activations of so many responses take up to "
        f"{size * one / GIB:.0f} GiB, and {max(0, room) / GIB:.0f} GiB are left for them: set it to {fitting} and "
        f"trainer.gradient_accumulation_steps to {accumulated * size // fitting}"
    )
