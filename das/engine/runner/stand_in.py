"""What stands in for Triton in vLLM's model runner on a CPU.

vLLM has that runner for CPUs too, but its kernels need a build of Triton that no package index has. Without it, vLLM
says that it has no Triton, and this stays so for every engine: only the modules of this runner
(vllm.v1.worker.gpu), which no other engine on a CPU uses, are changed. In them each kernel is replaced by a function of
host_kernels.c or host_kernels.py.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from ctypes import c_int64
from itertools import islice
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from das.engine.runner.host_kernels import AS_TENSORS, HOST_KERNELS
from das.general.errors import NotInstalled
from das.general.native import load_native

MODULES = "vllm.v1.worker.gpu."
SOURCE = Path(__file__).with_name("host_kernels.c")
# Folders of speculators in vLLM 0.31, and their names since.
RENAMED = {"autoregressive": "target_dependent_ar", "draft_model": "standalone_ar"}
C_TYPES = {"bool": torch.bool, "int32_t": torch.int32, "int64_t": torch.int64, "uint64_t": torch.uint64}


@functools.cache
def compiled() -> dict[str, tuple[Callable[..., None], list[torch.dtype | None]]]:
    """Returns the functions of host_kernels.c by the names of their kernels, with the types of the arrays that their
    arguments are; None: a number."""
    library, found = load_native(SOURCE), {}
    for name, declared in re.findall(r"^void (\w+)\(([^)]*)\) {", SOURCE.read_text(), re.MULTILINE):
        arguments = re.findall(r"(\w+) (\*?)\w+(?:,|$)", declared)
        function = getattr(library, name)
        function.argtypes, function.restype = [c_int64] * len(arguments), None  # addresses are numbers
        found[f"_{name}_kernel"] = function, [C_TYPES[kind] if star else None for kind, star in arguments]
    return found


class HostKernel:
    """Takes the place of a kernel, and is launched like it: kernel[grid](...).

    kernel: what vLLM has without Triton: the kernel as a plain function, which tests run in Triton's interpreter.
    """

    def __init__(self, kernel: FunctionType):
        self.kernel, self.name = kernel, kernel.__name__
        path = kernel.__module__.split(".")
        if path[-1] == "speculator":  # kernels of several speculators have the same name
            self.name = f"_{RENAMED.get(path[-2], path[-2])}{self.name}"
        parameters = inspect.signature(kernel).parameters.items()
        self.parameters = {name.removesuffix("_ptr"): parameter.default for name, parameter in parameters}
        self._compiled = compiled().get(self.name)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return functools.partial(self.launch, grid)

    def launch(self, grid: Any, *args: Any, **kwargs: Any) -> None:
        """Do what the kernel does. Raises NotInstalled if there is no function for it, or for other types of arrays."""
        named = islice(self.parameters.items(), len(args), None)
        values = [*grid, *args, *[kwargs.get(name, default) for name, default in named]]
        if self._compiled is not None:
            function, types = self._compiled
            addresses, widened = [], []
            values = [*grid, *self._as_in_newest(values[len(grid) :])]
            for value, kind in zip(values, types, strict=True):
                if not isinstance(value, torch.Tensor):
                    addresses.append(value or 0)
                elif value.dtype is kind:
                    addresses.append(value.data_ptr())
                elif (value.dtype, kind) == (torch.int32, torch.int64):  # vLLM 0.31 has indices of requests in int32
                    widened.append((value, value.to(kind)))
                    addresses.append(widened[-1][1].data_ptr())
                else:
                    raise NotInstalled(
                        f"vLLM's kernel {self.name} gets {value.dtype}, which das does not know on a CPU"
                    )
            function(*addresses)
            for value, wide in widened:
                value.copy_(wide)
            return
        if self.name not in HOST_KERNELS:
            raise NotInstalled(
                f"vLLM's kernel {self.name} does not run on a CPU: take another method or option, or a GPU"
            )
        arguments = dict(zip(self.parameters, values[len(grid) :], strict=True))
        for name, value in arguments.items():
            if torch.is_tensor(value) and name not in AS_TENSORS:
                arguments[name] = value.numpy()
        HOST_KERNELS[self.name](grid, SimpleNamespace(**arguments))

    def _as_in_newest(self, values: list[Any]) -> list[Any]:
        """Returns a launch's arguments as vLLM 0.32's kernel takes them."""
        if "kernel_block_sizes" not in self.parameters:  # of 0.31, and these are the sizes that count
            return values
        named = dict(zip(self.parameters, values, strict=True))
        named["block_sizes"] = named.pop("kernel_block_sizes")
        return [*named.values()]


def is_kernel(function: Any) -> bool:
    """Returns whether this is a kernel, or a function that kernels call. Without Triton they are plain functions."""
    return isinstance(function, FunctionType) and inspect.getsource(function).startswith("@triton.jit")


def replace_kernels() -> None:
    """Import vLLM's runner, and replace its kernels. A second call replaces those of modules imported since."""
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
