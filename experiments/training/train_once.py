"""Train once (task.train_once): the first arm of a comparison trains, and the other arms take its weights."""

import os
import time
from copy import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_model
from transformers import TrainerCallback
from trl import GRPOConfig

from experiments.digests import weights_digest
from experiments.run.errors import RunFailed
from experiments.run.progress import Barrier
from experiments.training.trainer import SpeculativeGRPOTrainer


def write_weights(path: Path, model: torch.nn.Module, step: int) -> None:
    """Write the weights of `model` after `step` into a new file, because models use the old one as their memory."""
    new = path.with_suffix(".new")
    save_model(model, str(new), {"step": str(step), "digest": weights_digest(model)})
    os.replace(new, path)


def load_weights(path: Path, model: torch.nn.Module, step: int) -> None:
    """Give `model` the weights after `step`, bit for bit. The file becomes their memory, which all arms share.

    Raises RunFailed if the file cannot be read, or if the model now has other weights than the first arm after that
    step.
    """
    try:
        with safe_open(path, "pt") as file:
            written = file.metadata()
        parameters = model.state_dict(keep_vars=True)
        for name, tensor in load_file(path).items():
            parameters[name].data = tensor
    except (OSError, SafetensorError) as error:
        raise RunFailed(f"the first arm's weights of step {step} cannot be read: {error}") from error
    if (written["step"], written["digest"]) != (str(step), weights_digest(model)):
        raise RunFailed(f"{path} does not hold the first arm's weights of step {step}, as it wrote them")


class GiveWeights(TrainerCallback):
    """In the first arm: writes its weights into a file after each step. The time for this is not part of the arm's own
    time."""

    def __init__(self, path: Path, barrier: Barrier):
        self.path = path
        self.barrier = barrier

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the weights. The optimizer has just stepped."""
        start = time.perf_counter()
        write_weights(self.path, kwargs["model"], state.global_step)
        self.barrier.waited_s += time.perf_counter() - start


class TakeWeights(TrainerCallback):
    """In any other arm: loads the first arm's weights after each step."""

    def __init__(self, path: Path):
        self.path = path

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Load the weights. The first arm has written them, because it trains before the other arms go on."""
        load_weights(self.path, kwargs["model"], state.global_step)


class RolloutTrainer(SpeculativeGRPOTrainer):
    """Runs the same loop without training: it rolls out, judges, evaluates and saves, and `TakeWeights` changes the
    policy.

    It makes no forward pass, so it has no loss, no gradients and no optimizer state.
    """

    trains = False

    def __init__(self, *, args: GRPOConfig, **kwargs: Any):
        """args, kwargs: as for SpeculativeGRPOTrainer."""
        args = copy(args)
        args.vllm_importance_sampling_correction = False  # else TRL computes log-probs of the responses
        args.beta = 0.0  # else TRL loads a reference model
        super().__init__(args=args, **kwargs)

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Roll out and judge, where a step's first micro-batch does so. Returns zero in place of a loss."""
        model.train()  # TRL would count the rollout as one of an evaluation
        self._prepare_inputs(inputs)
        self._step += 1
        return torch.zeros((), device=self.args.device)

    def _of_update(self, *args: Any) -> dict[str, Any]:
        return dict.fromkeys(super()._of_update(*args))
