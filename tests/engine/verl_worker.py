"""A worker extension that replaces weights as verl's does: bucket by bucket, then vLLM's own processing of them."""

from typing import Any

import torch

BUCKET = 4  # tensors


class Extension:
    """vLLM adds its methods to the worker (`--worker_extension_cls`); verl takes this place for its own."""

    model_runner: Any
    das_runner: Any
    device: Any

    def mask_vocabulary(self, vocab_size: int) -> None:
        """Replace the model's compute_logits on the object, so that no token past the tokenizer's is sampled."""
        model = self.model_runner.model
        original = model.compute_logits

        def compute_logits(*args: Any, **kwargs: Any) -> torch.Tensor:
            logits = original(*args, **kwargs)
            logits[..., vocab_size:] = -float("inf")
            return logits

        model.compute_logits = compute_logits

    def update_weights_from_file(self, path: str) -> None:
        """Load all tensors of a safetensors file."""
        from safetensors.torch import load_file
        from vllm.model_executor.model_loader.utils import process_weights_after_loading

        model, tensors = self.model_runner.model, list(load_file(path).items())
        for i in range(0, len(tensors), BUCKET):
            model.load_weights(tensors[i : i + BUCKET])
        process_weights_after_loading(model, self.model_runner.vllm_config.model_config, torch.device("cpu"))

    def counted(self) -> dict[str, int]:
        runner = self.das_runner
        return {
            "drafted": runner.meter.report().drafted,
            "weight_version": runner.sampler.seeds.defaults.weight_version,
        }
