"""Build the engines of task=check_gpu: random weights, made on the device, of any shape."""

import os
from collections.abc import Mapping
from typing import Any

from das.engine.methods import STOCK
from experiments.gpu.verdict import Scale

# How an engine is built; "graphs" first, because Inductor (compiled) takes minutes and may not know this torch.
FORMS: Mapping[str, dict[str, Any]] = {
    "graphs": {"compilation_config": {"mode": 0}},
    "eager": {"enforce_eager": True},
    "triton": {"enforce_eager": True, "attention_config": {"backend": "TRITON_ATTN"}},
    "compiled": {},
}
SHARE = 0.6  # of the device's memory, for an engine that has it alone


def build(
    scale: Scale,
    method: str,
    shape: str,
    options: Mapping[str, Any] | None = None,
    invariant: bool = False,
    **sizes: Any,
) -> Any:
    """Build an engine with random weights. `stock` is vLLM as it comes; other methods are das's.

    shape: of experiments/small_policy/shapes.py, on a GPU; a CPU takes a tiny one. options: of das.engine_arguments.
    invariant: exact=bits in place of distribution. sizes: further arguments of vllm.LLM; with load_format="auto" the
    weights are made beforehand, on the CPU, and lie on disk.
    """
    import das
    from das.engine.environment import in_this_process, variables
    from experiments.small_policy.shapes import random_policy, shape_of, weightless_policy

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO")  # the log says which kernels and graphs were chosen
    if method == STOCK:
        arguments: dict[str, Any] = {"logprobs_mode": "processed_logprobs"}
    else:
        exact = "bits" if invariant else "distribution"
        das.install(exact=exact)
        # A CPU takes the same way as a GPU does by default.
        asynchronous: dict[str, Any] = {} if scale.gpu or method == "none" else {"asynchronous": True}
        arguments = das.engine_arguments(method, exact=exact, **asynchronous, **(options or {}))
    from vllm import LLM

    name, dtype = scale.pick(shape, "tiny"), scale.pick("bfloat16", "float32")
    make = weightless_policy if scale.gpu and "load_format" not in sizes else random_policy
    policy = make(name, shape_of(name).vocabulary or 512, dtype, scale.cache / "policies")
    form = FORMS[scale.form] | {"load_format": "dummy"} if scale.gpu else {"enforce_eager": True}
    with variables(in_this_process()):
        return LLM(
            str(policy),
            **arguments
            | {"skip_tokenizer_init": True, "dtype": dtype, "gpu_memory_utilization": scale.pick(SHARE, 0.1)}
            | form
            | sizes,
        )


def sharpen(llm: Any) -> None:
    """Make the engine's random weights say something: vLLM's are so small that all tokens are equally likely."""
    llm.collective_rpc(_sharpen)


def _sharpen(worker: Any) -> None:
    head = worker.model_runner.get_model().lm_head.weight
    head.mul_(4.0 / head.float().std().item() / head.shape[1] ** 0.5)
