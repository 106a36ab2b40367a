"""Check whether the machine has what the GPU checks need. If not, a one-line message says what is missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

from das.doctor import nvidia_driver
from das.engine.versions import installed
from experiments.gpu.parts import Part

OLDEST_DRIVER = 580  # the oldest driver for CUDA 13 (docs/install.md)


@dataclass(frozen=True)
class Machine:
    """The hardware and software of a machine.

    cuda: the version that torch was built for. driver: the version of the loaded driver. name: the GPU. Each is None if
    there is none. free_gib: free GPU memory. capability: ten times the CUDA compute capability, 80 for 8.0. gpu_vllm:
    whether the installed vLLM is a build for GPUs.
    """

    torch: str
    cuda: str | None
    driver: str | None
    name: str | None
    free_gib: float
    capability: int
    gpu_vllm: bool


def this_machine() -> Machine:
    """Inspect this machine. Creates a CUDA context on the GPU, but computes nothing there."""
    import torch

    seen = torch.cuda.is_available()
    major, minor = torch.cuda.get_device_capability() if seen else (0, 0)
    return Machine(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        driver=nvidia_driver(),
        name=torch.cuda.get_device_name() if seen else None,
        free_gib=torch.cuda.mem_get_info()[0] / 2**30 if seen else 0.0,
        capability=10 * major + minor,
        gpu_vllm=installed("vllm") is not None and not version("vllm").endswith("+cpu"),
    )


def problem(machine: Machine, parts: Sequence[Part]) -> str:
    """Return one line that says why these parts cannot run on the machine's GPU, and what to change. Empty if they
    can."""
    if machine.driver is None:
        return "no NVIDIA driver is loaded: run it on a machine with a GPU, or set task.device=cpu"
    if machine.cuda is None:
        return f"torch {machine.torch} is built without CUDA: install requirements/gpu.txt (docs/install.md)"
    oldest = OLDEST_DRIVER if int(machine.cuda.split(".")[0]) >= 13 else 0
    if int(machine.driver.split(".")[0]) < oldest:
        return (
            f"the NVIDIA driver is {machine.driver}, and torch {machine.torch} with CUDA {machine.cuda} needs {oldest} "
            "or newer: update the driver"
        )
    if machine.name is None:
        return f"torch {machine.torch} (CUDA {machine.cuda}) sees no GPU, though driver {machine.driver} is loaded"
    if not machine.gpu_vllm:
        return "vLLM is not the build for GPUs: install requirements/gpu.txt (docs/install.md)"
    if machine.capability < 80:
        return f"{machine.name} has compute capability {machine.capability / 10}: vLLM's kernels need 8.0 or more"
    large = [part.name for part in parts if part.gib > machine.free_gib]
    if large:
        fitting = ",".join(part.name for part in parts if part.gib <= machine.free_gib)
        return (
            f"{machine.free_gib:.0f} GiB of {machine.name} are free, too few for {', '.join(large)}: free some, or set "
            f"task.parts=[{fitting}]"
        )
    return ""
