"""task=bench_rewards: do the rewards tell right from wrong on whole problem sets, and what does the sandbox cost?

gold        correct answers scored against themselves; all but empty ones should be right
permuted    correct answers scored against those of other problems; only equal ones should be right
reference   reference solutions run against their own tests; all should pass
other       the solution of the next problem, an empty one and `pass`, run against the same tests; none should pass
"""

import random
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments.harness.config import run_config
from experiments.harness.reward import make_sandbox
from experiments.harness.validate import check
from experiments.problems import reference_solutions as problem_sets
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from rewards.code import CodeReward, leetcode_tests
from rewards.maths import MathsReward
from rewards.sandbox import SandboxError

MATHS = ("dsr_sub", "math500")
MATHS_WORKERS, MATHS_TIMEOUT_S = 2, 8.0  # as configs/reward/maths.yaml


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Measure, print a line per set, write result.json."""
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
        result[name] = verdicts = judge_golds(maths, golds, config.task.permutations)
        progress.note(f"{name:10s} gold right {verdicts['right']} of {len(golds)}; permuted {verdicts['permuted']}")
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
    """Counts of verdicts. Lists correct answers that are judged wrong, and different texts that are judged equal."""
    usable = [gold for gold in golds if gold.strip()]
    right = maths([f"\\boxed{{{gold}}}" for gold in usable], usable)
    result: dict[str, Any] = {
        "right": int(sum(right)),
        "empty": len(golds) - len(usable),
        "wrong": [gold for gold, reward in zip(usable, right, strict=True) if not reward],
    }
    permuted = []
    for seed in range(permutations):
        answers = random.Random(seed).sample(usable, len(usable))
        rewards = maths([f"\\boxed{{{answer}}}" for answer in answers], usable)
        accepted = [pair for pair, reward in zip(zip(answers, usable, strict=True), rewards, strict=True) if reward]
        same = sum(answer == gold for answer, gold in accepted)
        missed = sum(answer == gold for answer, gold in zip(answers, usable, strict=True)) - same
        found_equal = [pair for pair in accepted if pair[0] != pair[1]]
        permuted.append({"same_text": same, "missed": missed, "found_equal": found_equal})
    return {**result, "permuted": permuted, "hung": maths.hung}


def judge_solutions(reward: CodeReward, rows: list[tuple[str, str, str]]) -> dict[str, Any]:
    """How many reference solutions pass, which fail and why, whether any other code passes, and how long it takes.

    rows: name, reference solution and tests of each problem.
    """
    tests = [row[2] for row in rows]
    began = time.perf_counter()
    passed = sum(reward([fenced(row[1]) for row in rows], tests))
    seconds = time.perf_counter() - began
    verdicts = reward.verdicts
    failed = {row[0]: verdict.why for row, verdict in zip(rows, verdicts, strict=True) if not verdict.passed}
    next_solutions = [row[1] for row in rows[1:]] + [rows[0][1]]
    wrong = {
        "next": reward([fenced(source) for source in next_solutions], tests),
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
    """Milliseconds that a solution of next to no work takes.

    clock_ms: wall clock over all solutions, divided by their number. median_ms, p99_ms: from start to end of one.
    """
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
