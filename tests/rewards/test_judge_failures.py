"""A failure of the judge is never a wrong answer: it is tried once more, then it is an error that says what failed."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.arm.reward import check_judge
from experiments.run.errors import UserError
from experiments.settings.groups import MathsConfig
from rewards import maths
from rewards.code import CodeReward, program_tests
from rewards.limits import Limits
from rewards.maths import GoldError, MathsReward, accuracy_reward, readable
from rewards.sandbox import Sandbox
from rewards.workers import DEATHS, JudgeError, WorkerError, Workers

RIGHT = ["\\boxed{7}", "so \\boxed{\\frac{1}{2}}", "\\boxed{8}", "none"]
GOLDS = ["7", "0.5", "7", "7"]
REWARDS = [1.0, 1.0, 0.0, 0.0]
CHECK = "def check(candidate):\n    assert candidate(6) == 36"
SQUARE = "def f(x): return x * x"
MEMORY_MB = 613  # of a solution, by which its process is known


def in_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(call).result()


# ---- maths ----


def test_maths_scores_alike_in_any_thread() -> None:
    """Seen where rewards are called in a thread: 12 of 12 right answers scored 0."""
    assert in_thread(lambda: accuracy_reward(RIGHT, GOLDS)) == REWARDS
    assert accuracy_reward(RIGHT, GOLDS) == REWARDS
    assert in_thread(lambda: accuracy_reward(["\\boxed{11}"], ["11"])) == [1.0]  # a gold answer that is in no cache
    assert in_thread(lambda: (readable("12"), readable(""))) == (True, False)
    with pytest.raises(GoldError, match="cannot parse the gold answer ''"):
        in_thread(lambda: accuracy_reward(["\\boxed{1}"], [""]))


def test_only_what_math_verify_refuses_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(error: type[BaseException]) -> Callable[..., bool]:
        def verify(*_: object, **__: object) -> bool:
            raise error("nothing in an answer causes this")

        return verify

    for refusal in (ValueError, ZeroDivisionError, RecursionError):
        monkeypatch.setattr("math_verify.verify", fails(refusal))
        assert accuracy_reward(["\\boxed{7}"], ["7"]) == [0.0]
    for failure in (TypeError, ImportError, OSError, AttributeError):
        monkeypatch.setattr("math_verify.verify", fails(failure))
        with pytest.raises(JudgeError, match=r"math-verify failed: .*nothing in an answer causes this"):
            accuracy_reward(["\\boxed{7}"], ["7"])


@pytest.fixture
def unchecked() -> Any:
    """The check of math-verify is made again, before and after the test."""
    maths.check.cache_clear()
    maths._gold.cache_clear()
    yield
    maths.check.cache_clear()
    maths._gold.cache_clear()


@pytest.mark.parametrize(
    ("name", "other", "says"),
    [
        ("math_verify.parse", lambda text, config: [7], "unexpected keyword argument"),
        ("math_verify.parse", lambda *_, **__: [], "cannot parse the gold answer '53'"),
        ("math_verify.verify", lambda *_, **__: False, "53 for 53 scores 0.0"),
        ("math_verify.verify", lambda *_, **__: True, "54 for 53 scores 1.0"),
    ],
    ids=["signature", "no parser", "all wrong", "all right"],
)
def test_a_math_verify_that_does_not_work_is_refused_at_the_start(
    unchecked: None, monkeypatch: pytest.MonkeyPatch, name: str, other: object, says: str
) -> None:
    monkeypatch.setattr(name, other)
    with pytest.raises(UserError) as error:
        check_judge(MathsConfig(name="maths", parallel=1, timeout_s=8.0))
    assert says in str(error.value)
    assert "antlr4-python3-runtime 4" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_antlr_without_a_parser_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """latex2sympy2_extended has parsers for three versions of antlr. With another, math-verify cannot be imported."""
    metadata = tmp_path / "antlr4_python3_runtime-4.12.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: antlr4-python3-runtime\nVersion: 4.12.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WorkerError, match=r"reward=maths cannot judge here: .*4\.12\.0") as error:
        MathsReward(1, 8.0)
    assert "\n" not in str(error.value)


# ---- workers ----


def worker(*answers: str) -> list[str]:
    """A worker that gives the same answers after each start."""
    body = f"import sys\nprint('{{\"ready\": true}}', flush=True)\nfor a in {answers!r}: input(); print(a, flush=True)"
    return [sys.executable, "-c", body]


def test_a_worker_that_fails_twice_is_an_error() -> None:
    workers = Workers(worker('{"failed": "no room"}'), 1, 60.0)
    with pytest.raises(WorkerError, match=r"^no room$"):
        workers.ask([1])
    assert workers.counts.take()[DEATHS] == 2
    workers.close()


# ---- the sandbox ----


@pytest.fixture(scope="module")
def judges() -> Any:
    """One judge. Its solutions may sleep for long."""
    judge = CodeReward(1, Limits(wall_s=120.0, memory_mb=MEMORY_MB))
    yield judge
    judge.close()


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ("def check(candidate): return candidate(1) == wanted", "NameError: name 'wanted'"),
        ("import no_such_module\n" + CHECK, "ModuleNotFoundError"),
        ("def check(candidate: return", "SyntaxError"),
        ("def test(candidate): pass", "KeyError: 'check'"),
    ],
)
def test_tests_that_fail_by_themselves_are_an_error(judges: Sandbox, tests: str, says: str) -> None:
    with pytest.raises(ValueError, match="the tests of a problem cannot be run: ") as error:
        judges.run([{"source": SQUARE, "entry": "f", "tests": tests}])
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert judges.take_counts()[DEATHS] == 0


@pytest.mark.parametrize("error", ["Exception('wrong')", "UnboundLocalError"])
def test_what_tests_raise_on_a_wrong_answer_is_a_wrong_answer(judges: Sandbox, error: str) -> None:
    tests = f"def check(candidate):\n    if candidate(6) != 36: raise {error}"
    sources = (SQUARE, "def f(x): return x")
    verdicts = judges.run([{"source": source, "entry": "f", "tests": tests} for source in sources])
    assert [verdict.passed for verdict in verdicts] == [True, False]


def solutions() -> list[int]:
    """The processes below this one in which solutions run: only these have this limit."""
    found = []
    for pid in (process.pid for process in psutil.Process().children(recursive=True)):
        with suppress(OSError):  # it has ended
            limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
            if any(line.split()[:4] == ["Max", "address", "space", str(MEMORY_MB << 20)] for line in limits):
                found.append(pid)
    return found


def killing(find: Callable[[], Sequence[int]], times: int, run: Callable[[], Any]) -> Any:
    """Run while the first `times` of the processes that `find` finds are killed, as the kernel does without memory."""
    killed: set[int] = set()
    with ThreadPoolExecutor(1) as aside:
        result = aside.submit(run)
        while not result.done() and len(killed) < times:
            for pid in set(find()) - killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
            time.sleep(0.02)
        return result.result()


SLOW = "import time\ndef f(x):\n    time.sleep(5)\n    return x * x"
TOLERANT = {
    "source": SLOW,
    "entry": "f",
    "tests": "def check(candidate):\n    try: candidate(6)\n    except: pass",
}
PROGRAM = {"source": "import time\ntime.sleep(5)\nprint(36)", "tests": [["6", "36"]]}


@pytest.mark.slow
def test_a_solution_that_the_kernel_kills_is_judged_again(judges: Sandbox) -> None:
    judges.take_counts()
    (verdict,) = killing(solutions, 1, lambda: judges.run([TOLERANT]))
    assert verdict.passed, verdict
    assert judges.take_counts()[DEATHS] == 1


@pytest.mark.slow
def test_a_solution_that_the_kernel_kills_twice_is_an_error(judges: Sandbox) -> None:
    with pytest.raises(WorkerError, match="killed from outside; if memory ran out"):
        killing(solutions, 2, lambda: judges.run([PROGRAM]))


def test_a_fork_server_that_is_killed_is_replaced(judges: Sandbox) -> None:
    judges.take_counts()
    (judge,) = (str(worker.process.pid) for worker in judges._workers._all)
    children = Path(f"/proc/{judge}/task/{judge}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    (verdict,) = judges.run([{"source": SQUARE, "entry": "f", "tests": CHECK}])
    assert verdict.passed, verdict
    assert judges.take_counts()[DEATHS] == 1


def test_a_solution_cannot_feign_a_failure_of_the_sandbox(judges: CodeReward) -> None:
    for ending in ("os._exit(111)", "os.abort()", "os.close(2); os.closerange(3, 9); os._exit(111)"):
        assert judges([f"```\nimport os\n{ending}\n```"], [program_tests([("6", "36")])]) == [0.0]
    assert judges.take_counts()[DEATHS] == 0


# ---- what a solution may import ----


def test_a_solution_imports_what_computes(judges: Sandbox) -> None:
    """A child can open no file, so what is not loaded before cannot be imported."""
    source = """
import cmath, colorsys, csv, graphlib, mmap, numpy.fft, unittest
from datetime import datetime
from sortedcontainers import SortedList
def f(x):
    assert datetime.strptime("2026-11-29", "%Y-%m-%d").day == 29
    assert "\\N{BULLET}\u00e9".encode("utf-16").decode("utf-16").encode("cp1252")
    return int(numpy.fft.fft([x * x]).real.sum())
"""
    (verdict,) = judges.run([{"source": source, "entry": "f", "tests": CHECK}])
    assert verdict.passed, verdict
