"""task=bench_rewards: do the rewards tell right from wrong on whole problem sets, and what does the sandbox cost?

gold        gold answers scored against themselves; all but empty ones should be right
permuted    gold answers scored against those of other problems; only equal ones should be right
reference   reference solutions against their own tests
other       the solution of the next problem, an empty one and `pass`, against the same tests: none should pass
"""

import random
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments.bench import reference_solutions as problem_sets
from experiments.harness.config import run_config
from experiments.harness.reward import make_sandbox
from experiments.harness.validate import check
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from rewards.code import CodeReward, leetcode_tests
from rewards.maths import MathsReward
from rewards.sandbox import SandboxError

MATHS = ("dsr_sub", "math500")
MATHS_WORKERS, MATHS_TIMEOUT_S = 2, 8.0  # as configs/reward/maths.yaml


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Measure, print a line a set, write result.json."""
    check(run_config(config))
    if config.reward.name != "code":
        raise UserError("task=bench_rewards measures the sandbox too: add reward=code data=programs")
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    problems = Path(config.task.problems)
    maths = MathsReward(MATHS_WORKERS, MATHS_TIMEOUT_S)
    result: dict[str, Any] = {}
    for name in MATHS:
        golds = problem_sets.gold_answers(problems / f"{name}.parquet")
        result[name] = found = judge_golds(maths, golds, config.task.permutations)
        progress.note(f"{name:10s} gold right {found['right']} of {len(golds)}; permuted {found['permuted']}")
    maths.close()
    try:
        sandbox = make_sandbox(run_config(config).reward, config.reward.parallel)
    except SandboxError as error:
        raise UserError(str(error)) from error
    reward = CodeReward(sandbox)
    for name, rows in (
        ("deepcoder", problem_sets.deepcoder(problems / "deepcoder_leetcode.json.gz")),
        ("humaneval", problem_sets.humaneval(problems / "HumanEval.jsonl.gz")),
    ):
        result[name] = judge_solutions(reward, rows)
        progress.note(f"{name:10s} {result[name]}")
    result["overhead"] = overhead(reward, config.task.overhead)
    progress.note(f"overhead   {result['overhead']}")
    sandbox.close()
    progress.note(f"result: {run_folder.write_result(result)}")


def judge_golds(maths: MathsReward, golds: list[str], permutations: int) -> dict[str, Any]:
    """Counts, and every pair that is no plain match: wrong gold, or two texts found equal."""
    usable = [gold for gold in golds if gold.strip()]
    right = maths([f"\\boxed{{{gold}}}" for gold in usable], usable)
    found: dict[str, Any] = {
        "right": int(sum(right)),
        "empty": len(golds) - len(usable),
        "wrong": [gold for gold, reward in zip(usable, right, strict=True) if not reward],
    }
    permuted = []
    for seed in range(permutations):
        others = random.Random(seed).sample(usable, len(usable))
        rewards = maths([f"\\boxed{{{other}}}" for other in others], usable)
        pairs = [pair for pair, reward in zip(zip(others, usable, strict=True), rewards, strict=True) if reward]
        same = sum(other == gold for other, gold in pairs)
        missed = sum(other == gold for other, gold in zip(others, usable, strict=True)) - same
        equal = [pair for pair in pairs if pair[0] != pair[1]]
        permuted.append({"same_text": same, "missed": missed, "found_equal": equal})
    return {**found, "permuted": permuted, "hung": maths.hung}


def judge_solutions(reward: CodeReward, rows: list[tuple[str, str, str]]) -> dict[str, Any]:
    """How many reference solutions pass, which do not and why, whether any other does, and the time it takes."""
    tests = [row[2] for row in rows]
    began = time.perf_counter()
    passed = sum(reward([fenced(row[1]) for row in rows], tests))
    seconds = time.perf_counter() - began
    verdicts = reward.verdicts
    failed = {row[0]: verdict.why for row, verdict in zip(rows, verdicts, strict=True) if not verdict.passed}
    others = [row[1] for row in rows[1:]] + [rows[0][1]]
    wrong = {
        "next": reward([fenced(source) for source in others], tests),
        "empty": reward([fenced("")] * len(rows), tests),
        "pass": reward([fenced("pass")] * len(rows), tests),
    }
    return {
        "solutions": len(rows),
        "passed": int(passed),
        "failed": failed,
        "others_passed": {
            kind: [row[0] for row, one in zip(rows, rewards, strict=True) if one] for kind, rewards in wrong.items()
        },
        "ms_a_solution": seconds / len(rows) * 1000,
        "tests_a_second": sum(verdict.tests for verdict in verdicts) / seconds,
    }


def overhead(reward: CodeReward, count: int) -> dict[str, float]:
    """Milliseconds of a solution that does next to nothing: by the clock over all, and from start to end of one."""
    tests = [leetcode_tests("def check(candidate):\n    assert candidate(3) == 9\ncheck(f)")] * count
    sources = [fenced("def f(x): return x * x")] * count
    reward(sources[:8], tests[:8])
    began = time.perf_counter()
    if sum(reward(sources, tests)) < count:
        raise AssertionError("a right solution did not pass")
    clock = time.perf_counter() - began
    each = sorted(verdict.seconds for verdict in reward.verdicts)
    return {
        "clock_ms": clock / count * 1000,
        "median_ms": each[count // 2] * 1000,
        "p99_ms": each[int(count * 0.99)] * 1000,
    }


def fenced(source: str) -> str:
    """A response whose answer is `source`."""
    return f"```python\n{source}\n```"
