"""What stands in for Triton in vLLM's second model runner on a CPU.

vLLM has that runner for CPUs too, but its kernels need a build of Triton that no package index has. Without it, vLLM
says that it has no Triton, and this stays so for every engine: only the modules of the second runner
(vllm.v1.worker.gpu), which no other engine on a CPU uses, are changed. In them each kernel is replaced by a function of
host_kernels.py.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from das.engine.contract.versions import NotInstalled
from das.engine.runners.second.host_kernels import AS_TENSORS, HOST_KERNELS

MODULES = "vllm.v1.worker.gpu."


class HostKernel:
    """Takes the place of a kernel, and is launched like it: kernel[grid](...).

    kernel: what vLLM has without Triton: the kernel as a plain function, which tests run in Triton's interpreter.
    """

    def __init__(self, kernel: FunctionType):
        self.kernel, self.name = kernel, kernel.__name__
        path = kernel.__module__.split(".")
        if path[-1] == "speculator":  # kernels of several speculators have the same name
            self.name = f"_{path[-2]}{self.name}"
        self.parameters = [name.removesuffix("_ptr") for name in inspect.signature(kernel).parameters]

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(self.launch, grid)

    def launch(self, grid: Any, *args: Any, **kwargs: Any) -> None:
        """Do what the kernel does. Raises NotInstalled if there is no function for it."""
        if self.name not in HOST_KERNELS:
            raise NotInstalled(f"vLLM's kernel {self.name} does not run on a CPU: set engine.runner=first")
        named = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
        arrays = {
            name: value.numpy() for name, value in named.items() if name not in AS_TENSORS and torch.is_tensor(value)
        }
        HOST_KERNELS[self.name](grid, SimpleNamespace(**named | arrays))


def is_kernel(function: Any) -> bool:
    """Returns whether this is a kernel, or a function that kernels call. Without Triton they are plain functions."""
    return isinstance(function, FunctionType) and inspect.getsource(function).startswith("@triton.jit")


def replace_kernels() -> None:
    """Import the second runner, and replace its kernels. A second call replaces those of modules imported since."""
    import triton
    import vllm.v1.worker.cpu.model_runner  # noqa: F401

    for name, module in list(sys.modules.items()):
        if not name.startswith(MODULES) or not hasattr(module, "triton"):
            continue
        module.triton = triton  # type: ignore[attr-defined]  # for its functions of the host, such as next_power_of_2
        for function in list(vars(module).values()):
            known = getattr(function, "__name__", "")
            if known.endswith("_kernel") and function.__module__ == name and is_kernel(function):
                setattr(module, known, HostKernel(function))
