"""Engines in which each launch runs in Triton's interpreter, too: both must write the same.

A process of its own (test_stand_in.py), because Triton decides when it is imported whether it interprets. Prints how
often each kernel was launched.
"""

import functools
import json
import random
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import Any

import torch
import triton
import triton.language as tl
from conftest import Engines, mtp_policy, roll
from triton.runtime.interpreter import InterpretedFunction

from das.engine.runner.stand_in import HostKernel, is_kernel, replace_kernels

ROUNDED = ("_topk_log_softmax_kernel",)  # its last bits differ on purpose: torch's
LAUNCHES: Counter[str] = Counter()
tl.debug_barrier = lambda *args, **kwargs: None  # vLLM does so on CPUs with Triton: the interpreter has one thread


@functools.cache
def interpretable(module: str) -> dict[str, Any]:
    """The names of a module, in which its kernels, and the functions that they call, run in the interpreter."""
    names = {**vars(sys.modules[module]), "triton": triton, "tl": tl}
    for name, value in list(names.items()):
        function = value.kernel if isinstance(value, HostKernel) else value
        if is_kernel(function) and function.__module__ != module:
            names[name] = interpretable(function.__module__)[name]
        elif is_kernel(function):
            names[name] = InterpretedFunction(FunctionType(function.__code__, names, name, function.__defaults__))
    return names


def copy_of(arg: Any) -> Any:
    """A copy with the same strides, which are arguments of their own."""
    return torch.empty_strided(arg.size(), arg.stride(), dtype=arg.dtype).copy_(arg) if torch.is_tensor(arg) else arg


on_host = HostKernel.launch


def launch_both(self: HostKernel, grid: Any, *args: Any, **kwargs: Any) -> None:
    LAUNCHES[self.name] += 1
    copies = [copy_of(arg) for arg in args]
    interpretable(self.kernel.__module__)[self.kernel.__name__][grid](*copies, **kwargs)
    on_host(self, grid, *args, **kwargs)
    close = 1e-5 if self.name in ROUNDED else 0.0
    for i, (one, other) in enumerate(zip(copies, args, strict=True)):
        if isinstance(one, torch.Tensor) and one.dtype != torch.uint64:  # addresses: both wrote to the same place
            same = torch.allclose(one.double(), other.double(), rtol=close, atol=close, equal_nan=True)
            assert same, f"{self.name}: argument {i} differs from the kernel's"


def prepare_multimodal_positions() -> None:
    """Launch the kernel that only engines with images launch: a request amid its prompt, and one behind it."""
    from vllm.v1.worker.gpu.mm.rope import RopeState

    replace_kernels()
    state = RopeState(3, 4, 32, 64, torch.device("cpu"))
    state.prefill_positions.gpu.random_(0, 60)
    state.prefill_delta.np[:] = [3, -2, 5, -7]
    state.prefill_delta.copy_to_uva()
    starts, prompts = torch.tensor([0, 9, 13], dtype=torch.int32), torch.tensor([20, 20, 40, 20], dtype=torch.int32)
    computed = torch.tensor([25, 0, 11, 0], dtype=torch.int32)
    state.prepare_positions(torch.tensor([2, 0]), starts, prompts, computed)
    assert state.positions[0, 9:13].tolist() == [28, 29, 30, 31]


def main(policy: str) -> None:
    HostKernel.launch = launch_both  # type: ignore[method-assign]
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    kinds: list[dict[str, Any]] = [
        {"temperature": 0.7, "top_p": 0.9, "logprobs": 1},
        {"temperature": 1.3, "min_p": 0.05},
        {"presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logprobs": 0},
        {"logit_bias": {17: 3.0, 45: -5.0}, "bad_words": ["add", "0 1"]},
        {"allowed_token_ids": list(range(2, 150))},
        {"min_tokens": 6, "stop_token_ids": list(range(30, 100))},
        {"structured_outputs": StructuredOutputsParams(regex="[0-9]{3,40}x")},
        {"temperature": 0.0, "prompt_logprobs": 1},
    ]
    engines = Engines()
    llm = engines.build(policy, method="das", max_num_batched_tokens=64)
    texts = random.Random(0)
    prompts = [[texts.randrange(6, 250) for _ in range(4 + 9 * i)] for i in range(len(kinds))]
    drafted = 0
    for tick in range(2):
        params = [SamplingParams(seed=i, max_tokens=10, **kind) for i, kind in enumerate(kinds)]
        drafted += roll(llm, prompts, params, [str(i) for i in range(len(kinds))], tick + 1)[2]["drafted"]
    with TemporaryDirectory() as folder:
        for method, own, model in (("draft_model", policy, {"model": policy}), ("mtp", mtp_policy(Path(folder)), {})):
            settings = {"num_speculative_tokens": 3, **model}
            llm = engines.build(own, method=method, speculative=settings, max_num_batched_tokens=32)
            params = [SamplingParams(seed=i, max_tokens=8) for i in range(3)]
            drafted += roll(llm, [prompts[0], prompts[3], prompts[6]], params, ["0", "1", "2"], 1)[2]["drafted"]
    prepare_multimodal_positions()
    print("RESULT" + json.dumps({"launches": LAUNCHES, "drafted": drafted}))


if __name__ == "__main__":
    main(sys.argv[1])
