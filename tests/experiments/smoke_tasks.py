"""Run tasks once, for seconds: does each work in the environment of `make run`?

    python tests/experiments/smoke_tasks.py                  all but NIGHTLY, some minutes on 2 cores
    python tests/experiments/smoke_tasks.py calibrate advise    these two, and the tasks whose runs they need
    python tests/experiments/smoke_tasks.py --cache outputs/cache     use draft heads that were made before

Prints a line per task and exits with 1 if one fails. It needs no pytest, so it also runs where no test package is
installed. Nothing else is written outside the scratch folder, which is removed if all tasks pass.

This process imports every module, and each task runs in a fork of it. Those of COLD start as a user starts them.
"""

import argparse
import atexit
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from scripts import as_script  # noqa: E402

from das.engine.versions import silence_known  # noqa: E402
from experiments.run import processes  # noqa: E402
from experiments.settings.tasks import TASKS  # noqa: E402
from rewards.process import die_with_parent  # noqa: E402

LEFT_OUT = ("none", "suffix", "mtp", "eagle3_frozen")  # baseline; a package, a policy and a trained head of their own
ARMS = ",".join(["none", *sorted({path.stem for path in (ROOT / "configs" / "arm").glob("*.yaml")} - set(LEFT_OUT))])
TINY = "setting=smoke"  # two training steps of one problem x 4 short responses
# Settings of a run of seconds that shows that a task works. {compare} is the folder of the run of task=compare, which
# therefore comes first; {scratch} is one for what a task keeps.
SMOKE: dict[str, tuple[str, ...]] = {
    "compare": (TINY, "arms=[none,stock,das]"),
    "rollout": (TINY, "task.steps=2"),
    "evaluate": (TINY, "task.problems=4", "task.samples=2", "trainer.temperature=0"),
    "advise": ("task.rollouts={compare}",),
    "calibrate": (TINY, "task.live=[1,4]", "task.drafts=[0,2,4]", "task.passes=4", "task.rounds=1"),
    "bench_model_drafters": (
        TINY,
        "task.problems=2",
        "task.samples=2",
        "task.max_tokens=24",
        "task.drafters=[w8,w4]",
    ),
    # Two parts of five; tests/nightly/test_check_gpu.py runs most.
    "check_gpu": ("task.device=cpu", "task.parts=[sampler,passes]", "task.folder={scratch}/check_gpu"),
    # Beside the tasks: what chooses one is among the settings.
    "every_arm": ("task=compare", TINY, f"arms=[{ARMS}]"),
}
# Their whole runs are tests of their own.
TESTED = {
    "train": "tests/trl/test_survival.py",
    "reproduce": "tests/experiments/papers/test_papers.py",
    "experiment": "tests/experiments/test_planned_runs.py",  # and `make smoke`
    "recordings": "tests/experiments/papers/test_recordings.py",
    "bench_drafter": "tests/experiments/measure/test_bench_drafter.py",
}
NIGHTLY = ("every_arm",)  # 14 arms. That `make run` installs enough for them is shown by importing everything.
# They make a policy, which takes all cores: two at once take far longer than one after the other. task=compare comes
# before the tasks that read its run.
ALONE = ("every_arm", "compare")
COLD = ("compare",)
TIMEOUT_S, JOBS = 1200, 2  # of a task; how many run at once


def with_needed(names: list[str]) -> list[str]:
    """The tasks to run, in the order of SMOKE: `names` and those whose runs they read. No names: all but NIGHTLY."""
    chosen = set(names) or SMOKE.keys() - set(NIGHTLY)
    for name in list(chosen):
        chosen |= {needed for needed in TASKS if any(f"{{{needed}}}" in setting for setting in SMOKE[name])}
    return [name for name in SMOKE if name in chosen]


def command(name: str, scratch: Path, cache: Path) -> list[str]:
    """The smoke run of a task, with the placeholders of its settings filled in."""
    folders = {"scratch": scratch, **{task: scratch / "runs" / task for task in SMOKE}}
    settings = [setting.format_map(folders) for setting in SMOKE[name]]
    chosen = [f"task={name}"] if name in TASKS else []
    common = ["wandb=off", f"cache={cache}", f"out={scratch / 'out'}"]
    return ["run.py", *chosen, *settings, *common, f"hydra.run.dir={folders[name]}"]


def body(words: list[str], output: Path, cold: bool, pipe: object) -> None:
    """Body of a process: run.py with these arguments. What it prints goes to a file."""
    os.setsid()  # so that it can be killed with all that it started
    die_with_parent()
    with output.open("w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if cold:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, *words])
    as_script(words)


def run_tasks(names: Sequence[str], scratch: Path, cache: Path, jobs: int) -> list[str]:
    """Run some tasks, `jobs` at a time, and print each one's verdict, with the end of its output if it failed. Returns
    those that failed."""
    waiting, failed = list(names), []
    running: dict[str, tuple[Any, Path, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            output = scratch / f"{name}.txt"
            task, _ = processes.spawned(body, command(name, scratch, cache), output, name in COLD)
            running[name] = task, output, time.monotonic()
        wait([task.sentinel for task, *_ in running.values()], timeout=1)
        for name, (task, output, began) in list(running.items()):
            if (late := time.monotonic() - began > TIMEOUT_S) and task.exitcode is None:
                os.killpg(task.pid, signal.SIGKILL)
                task.join()
            if task.exitcode is None:
                continue
            del running[name]
            print(
                f"{'FAILED' if task.exitcode else 'ok':<6s} {name:<16s} {time.monotonic() - began:6.1f} s", flush=True
            )
            if task.exitcode:
                failed.append(name)
                lines = output.read_text().splitlines()[-25:] + late * [f"it took longer than {TIMEOUT_S} s"]
                print("\n".join(f"       {line}" for line in lines), flush=True)
    return failed


def import_everything() -> bool:
    """Import all modules, without the test packages. Prints a line; returns whether nothing was missing."""
    start, missing = time.monotonic(), ""
    silence_known()
    try:
        for package in ("das", "experiments", "rewards", "analysis"):
            for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}."):
                import_module(module.name)
    except Exception:
        missing = traceback.format_exc()
    atexit.unregister(os._exit)  # of experiments/run/warm.py, which is for a warm process
    print(f"{'FAILED' if missing else 'ok':<6s} {'imports':<16s} {time.monotonic() - start:6.1f} s", flush=True)
    print(missing, end="", flush=True)
    return not missing


def main() -> int:
    parser = argparse.ArgumentParser(description="Run tasks once, with settings for seconds.")
    parser.add_argument("tasks", nargs="*", help="tasks to run; all but those of the night if none is named")
    parser.add_argument("--cache", type=Path, help="folder of draft heads made before; by default they are made anew")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.tasks if name not in SMOKE]
    if unknown:
        parser.error(f"unknown tasks {', '.join(unknown)}: choose from {', '.join(SMOKE)}")
    scratch = Path(tempfile.mkdtemp(prefix="smoke_tasks_"))
    start = time.perf_counter()
    names = with_needed(chosen.tasks)
    cache = (chosen.cache or scratch / "cache").resolve()
    if not import_everything():
        return 1
    processes.START = "fork"
    failed = run_tasks([name for name in ALONE if name in names], scratch, cache, 1)
    failed += run_tasks([name for name in names if name not in ALONE], scratch, cache, JOBS)
    print(f"{len(names) - len(failed)} of {len(names)} tasks work, {time.perf_counter() - start:.0f} s")
    if failed:
        print(f"failed: {', '.join(failed)}; their runs are in {scratch}")
        return 1
    shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
