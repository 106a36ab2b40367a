"""Run every task of the registry once, with its smoke settings: does each work in the environment of `make run`?

    python tests/experiments/smoke_tasks.py                  all tasks, some minutes on 2 cores
    python tests/experiments/smoke_tasks.py replay audit     these two, and the tasks whose runs they need
    python tests/experiments/smoke_tasks.py --cache outputs/cache     use policies that were made before

Prints a line per task and exits with 1 if one fails. It needs no pytest, so it also runs where no test package is
installed. Nothing is written outside the scratch folder, which is removed if all tasks pass.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from made_inputs import write_lengths, write_problem_sets, write_traces  # noqa: E402

from experiments.registry import TASKS  # noqa: E402

# Smoke runs beside those of the registry: name -> what chooses the task, and settings. They make a policy of their own.
MORE = {"agent": ("task=compare", "setting=agent_smoke")}
SMOKE = {name: task.smoke for name, task in TASKS.items()} | MORE
# They make a policy, which takes all cores: two at once take far longer than one after the other. task=compare is the
# first, because other tasks read its run.
ALONE = ("compare", "agent")
LONG = ("experiment", "kill_test", "fault_test", "bench_sampler", "bench_budgets", "audit", "soak")


def with_needed(names: list[str]) -> list[str]:
    """The tasks to run, in the registry's order: `names` (all, if empty) and the tasks whose runs they read."""
    chosen = set(names or SMOKE)
    for name in list(chosen):
        chosen |= {needed for needed in TASKS if any(f"{{{needed}}}" in setting for setting in SMOKE[name])}
    return [name for name in SMOKE if name in chosen]


def command(name: str, scratch: Path, cache: Path) -> list[str]:
    """The smoke run of a task, with the placeholders of its settings filled in."""
    folders = {"made": scratch / "made", **{task: scratch / "runs" / task for task in SMOKE}}
    settings = [setting.format_map(folders) for setting in SMOKE[name]]
    chosen = [] if any(setting.startswith(("experiment=", "task=")) for setting in settings) else [f"task={name}"]
    common = ["wandb=off", f"cache={cache}", f"out={scratch / 'out'}"]
    return [sys.executable, str(ROOT / "run.py"), *chosen, *settings, *common, f"hydra.run.dir={folders[name]}"]


def run_task(name: str, scratch: Path, cache: Path, timeout_s: float) -> bool:
    """Run one task and print its verdict, with the end of its output if it failed; returns whether it works."""
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command(name, scratch, cache), cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        ok, output, errors = done.returncode == 0, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        ok, output, errors = False, "", f"it took longer than {timeout_s:.0f} s"
    lines = [f"{'ok' if ok else 'FAILED':<6s} {name:<16s} {time.perf_counter() - start:6.1f} s"]
    if not ok:
        lines += [f"       {line}" for line in [*output.splitlines()[-5:], *errors.splitlines()[-20:]]]
    print("\n".join(lines), flush=True)
    return ok


def run_tasks(names: list[str], scratch: Path, cache: Path, timeout_s: float, jobs: int) -> list[str]:
    """Run the tasks: those of ALONE first, then the others, `jobs` at a time. Returns those that failed."""
    write_traces(scratch / "made" / "traces")
    write_lengths(scratch / "made" / "lengths")
    write_problem_sets(scratch / "made" / "problems")
    works = {name: run_task(name, scratch, cache, timeout_s) for name in ALONE if name in names}
    # Those that start several engines come first, so that they do not remain alone at the end.
    others = sorted((name for name in names if name not in ALONE), key=lambda name: name not in LONG)
    with ThreadPoolExecutor(jobs) as pool:
        works |= dict(
            zip(others, pool.map(lambda name: run_task(name, scratch, cache, timeout_s), others), strict=True)
        )
    return [name for name in names if not works[name]]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run every task once, with the smoke settings of the registry.")
    parser.add_argument("tasks", nargs="*", help="tasks to run; all if none is named")
    parser.add_argument("--cache", type=Path, help="folder of policies made before; by default they are made anew")
    parser.add_argument("--timeout", type=float, default=1200.0, help="seconds that a task may take (1200)")
    parser.add_argument("--jobs", type=int, default=2, help="tasks that run at once (2)")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.tasks if name not in SMOKE]
    if unknown:
        parser.error(f"unknown tasks {', '.join(unknown)}: choose from {', '.join(SMOKE)}")
    scratch = Path(tempfile.mkdtemp(prefix="smoke_tasks_"))
    start = time.perf_counter()
    names = with_needed(chosen.tasks)
    if find_spec("ray") is None and "fault_test" in names:
        names.remove("fault_test")
        print("left out: fault_test, which needs ray (`make ray`)", flush=True)
    cache = (chosen.cache or scratch / "cache").resolve()
    failed = run_tasks(names, scratch, cache, chosen.timeout, chosen.jobs)
    print(f"{len(names) - len(failed)} of {len(names)} tasks work, {time.perf_counter() - start:.0f} s")
    if failed:
        print(f"failed: {', '.join(failed)}; their runs are in {scratch}")
        return 1
    shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
