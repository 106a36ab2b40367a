"""The body of a process that runs one part of task=check_gpu, and writes verdict.json and log.txt into its folder."""

import json
import os
import sys
import traceback
from dataclasses import asdict
from importlib import import_module
from typing import NoReturn

from hydra.core.global_hydra import GlobalHydra

from das.errors import reason_of
from das.files import write_text
from das.process import die_with_parent
from experiments.gpu.verdict import Scale, Verdict
from experiments.run import processes
from experiments.run.errors import CONFIGS

VERDICT, LOG = "verdict.json", "log.txt"


def use_device() -> None:
    """Compute something on the GPU."""
    import torch

    torch.ones(1, device="cuda").add_(1)
    torch.cuda.synchronize()


def run(function: str, scale: Scale) -> NoReturn:
    """Run the part and write its verdict. An exception also becomes a verdict. function: MODULE:NAME[:ARGUMENT]."""
    os.setsid()  # with the processes that the part starts
    die_with_parent()
    sys.stdout = sys.stderr = log = (scale.folder / LOG).open("w", buffering=1)
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CONFIGS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    if not scale.gpu:
        processes.START = "fork"
        GlobalHydra.instance().clear()  # the task's own: parts compose settings anew
    module, name, *arguments = function.split(":")
    try:
        verdict: Verdict = getattr(import_module(module), name)(scale, *arguments)
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict(False, f"{type(error).__name__}: {reason_of(error)[:300]}")
    write_text(scale.folder / VERDICT, json.dumps(asdict(verdict)))
    os._exit(0)  # ends at once, without shutting down the engines
