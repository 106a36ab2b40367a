"""The sandbox under attack: no solution passes a test by foul means, leaves a trace, or delays the trainer for long."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from attacks import ATTACKS, PROGRAM_ATTACKS
from forbidden import FORBIDDEN

from rewards import sandbox as sandbox_module
from rewards.code import CodeReward, job, program_tests
from rewards.limits import Limits
from rewards.sandbox import Sandbox, SandboxError, Verdict

ROOT = Path(__file__).resolve().parents[2]
LIMITS = Limits(cpu_s=1, wall_s=1.5, memory_mb=256, output_kb=256)
CHECK = "def check(candidate):\n    assert candidate(6) == 36\n    assert candidate(7) == 49"
SQUARE = "def f(x): return x * x"
ENV_SECRET = "SANDBOX_TEST_SECRET"
# What the verdict on some of the attacks says.
REASONS = {
    "signals without end": "CPU time",
    "endless sleep": "wall time",
    "memory hog": "raised MemoryError: ",
    "early exit": "ended before it answered",
    "huge answer": "returned too much",
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """One judge."""
    os.environ[ENV_SECRET] = "36 49"
    judge = Sandbox(1, LIMITS)
    yield judge
    judge.close()


def function(sandbox: Sandbox, source: str, check: str = CHECK) -> Verdict:
    return sandbox.run([{"source": source, "entry": "f", "tests": check}])[0]


def program(sandbox: Sandbox, source: str, cases: list[tuple[str, str]]) -> Verdict:
    return sandbox.run([job(source, program_tests(cases))])[0]


def attacked(verdict: Verdict) -> bool:
    """Whether the attack failed, and not because of a mistake in its own code."""
    mistakes = ("NameError", "SyntaxError", "ModuleNotFoundError")
    return not verdict.passed and not any(error in verdict.why for error in mistakes)


def test_right_wrong_and_empty(sandbox: Sandbox) -> None:
    right = function(sandbox, SQUARE)
    assert (right.passed, right.why, right.tests) == (True, "passed", 2)
    assert function(sandbox, "def f(x): return 36").why == "wrong answer"
    assert function(sandbox, "").why.startswith("raised NameError")
    assert function(sandbox, "def f(x: return").why.startswith("raised SyntaxError")
    assert function(sandbox, "def f(x): return str(x * x)").why == "wrong answer"
    assert function(sandbox, SQUARE, "def check(candidate): pass").why == "the tests never called it"
    cases = [("1 2\n", "3"), ("4 5\n", "9")]
    assert program(sandbox, "a, b = map(int, input().split()); print(a + b)", cases).passed
    assert program(sandbox, "print(3)", cases).why == "wrong answer"
    assert program(sandbox, "", cases).why == "wrong answer"
    assert program(sandbox, "import sys; print(sum(map(int, sys.stdin.read().split()))); sys.exit(3)", cases).why == (
        "exit status 3"
    )


def test_attacks_on_functions_fail_and_the_next_solution_is_judged_as_usual(sandbox: Sandbox) -> None:
    won = {}
    for name, source in ATTACKS.items():
        verdict = function(sandbox, source)
        if not (attacked(verdict) and verdict.why == REASONS.get(name, verdict.why)):
            won[name] = verdict
        assert function(sandbox, SQUARE).passed, name
    assert not won


def test_attacks_on_programs_fail(sandbox: Sandbox) -> None:
    won = {}
    for name, (source, cases, why) in PROGRAM_ATTACKS.items():
        verdict = program(sandbox, source, cases)
        if not (attacked(verdict) and verdict.why == (why or verdict.why)):
            won[name] = verdict
        assert function(sandbox, SQUARE).passed, name
    assert not won


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that any user may write to, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="sandbox-test-") as name:
        Path(name).chmod(0o777)
        kept = Path(name) / "kept"
        kept.write_text("kept")
        kept.chmod(0o666)
        yield Path(name)


def test_forbidden(sandbox: Sandbox, folder: Path) -> None:
    done = {}
    for name, statements in FORBIDDEN.items():
        filled = statements.format(pid=os.getpid(), secret=ENV_SECRET, folder=folder, project=ROOT / "README.md")
        verdict = function(sandbox, f"def f(x):\n    {filled}\n    return x * x")
        if not attacked(verdict):
            done[name] = verdict
    assert not done
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert (folder / "kept").read_text() == "kept"
    assert function(sandbox, SQUARE).passed


@pytest.mark.parametrize("ending", ["os._exit(0)", "os.write(4, b'\\1\\0\\0\\0x')", "return 'a' * 10**6"])
def test_tests_that_tolerate_everything_do_not_pass_a_solution_that_ended(sandbox: Sandbox, ending: str) -> None:
    """Seen to pass (2026-11-22): a bare `except:` in the tests swallowed the failure."""
    check = "def check(candidate):\n    assert candidate(6) == 36\n    try: candidate(7)\n    except: pass"
    verdict = function(sandbox, f"import os\ndef f(x):\n  if x > 6: {ending}\n  return x * x", check)
    assert not verdict.passed, verdict
    assert function(sandbox, "def f(x):\n  if x > 6: raise ValueError\n  return x * x", check).passed


def test_wall_time_ends_a_sleeper_and_cpu_time_ends_a_computation() -> None:
    """A solution that computes still gets its CPU time after its wall time, as it must on a busy machine."""
    hurried = Sandbox(1, Limits(cpu_s=1, wall_s=0.4))
    busy = "import time\nwhile time.process_time() - began < {}: pass\n"
    source = "import time\nbegan = time.process_time()\ndef f(x):\n    {}    return x * x"
    computes = source.format("while time.process_time() - began < x / 12: pass\n")  # 0.58 s for both calls
    assert function(hurried, computes).why == "passed"
    hurried.take_counts()
    assert function(hurried, "import time\ndef f(x): time.sleep(99)").why == "wall time"
    assert hurried.take_counts()["judge_timeouts"] == 1
    part = f"import time\nbegan = time.process_time()\n{busy.format(0.3)}print(36)"
    assert program(hurried, part, [("", "36")] * 2).why == "passed"
    assert program(hurried, part, [("", "36")] * 5).why == "CPU time"  # the limit holds for all tests together
    # The kernel can charge a process that sleeps and wakes often for ticks of others.
    writes = "import os, time\nwhile time.process_time() < 0.85: os.write(1, b' ')\nprint(36)"
    assert program(hurried, writes, [("", "36")]).why == "passed"
    # Tests that never end, or an answer that is slow to compare, in C code that no exception can interrupt.
    endless = "def check(candidate):\n    while True: pass"
    assert function(hurried, SQUARE, endless).why == "its judge hung or died"
    slow = "def check(candidate): assert sum(range(candidate(6))) == 36"
    hurried.take_counts()
    assert function(hurried, "def f(x): return 10 ** 11", slow).why == "its judge hung or died"
    assert hurried.take_counts() == {"judge_deaths": 1, "judge_failures": 1, "judge_timeouts": 0}
    assert function(hurried, "def f(x): return x").why == "wrong answer"
    hurried.close()


FORGED_ANSWERS = {
    "a set of equal hashes": """'{"t": "set", "v": [' + ','.join(str(i * P) for i in range(140000)) + ']}'""",
    "empty lists": "'[' + '[],' * 1390000 + '1]'",
    "a linked list": """'{"t": "list_node", "v": [' + '1,' * 2090000 + '1]}'""",
}


def test_a_forged_answer_costs_its_judge_little(code_reward: CodeReward) -> None:
    """An answer of 4 MB must not take its judge's life, nor a hundred times as much memory."""
    pool = code_reward._workers
    workers = set(pool._all)
    for name, answer in FORGED_ANSWERS.items():
        reply = f"""
import os, struct
P = (1 << 61) - 1  # Python's hash of every multiple of it is 0
def f(x):
    reply = ('["value", ' + {answer} + ']').encode()
    reply = struct.pack('<I', len(reply)) + reply
    while reply: reply = reply[os.write(4, reply):]
"""
        assert attacked(function(code_reward, reply)), name
        assert pool._all == workers, name
    for worker in workers:
        status = Path(f"/proc/{worker.process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if "VmHWM" in line)
        assert int(peak.split()[1]) < 200 << 10  # KiB


def test_nothing_leaks_from_one_solution_to_the_next(sandbox: Sandbox) -> None:
    """All share a fork server."""
    leave = """
import builtins, collections, os, random, sys
def f(x):
    builtins.left = collections.left = sys.left = 1
    os.environ['LEFT'] = '1'
    random.seed(x)
    sys.setrecursionlimit(50)
    os.umask(0)
    return x * x
"""
    look = """
import builtins, collections, gc, os, random, sys
def f(x):
    left = [hasattr(m, 'left') for m in (builtins, collections, sys)] + ['LEFT' in os.environ]
    left += [any('def f(x)' in o and 'setrecursionlimit(' in o for o in gc.get_objects() if type(o) is str)]
    return -1 if any(left) else random.random()
"""
    values = "def check(candidate): assert candidate(1) == 0.8444218515250481"  # random.seed(0), random.random()
    verdicts = [function(sandbox, look, values)]
    assert function(sandbox, leave).passed
    verdicts.append(function(sandbox, look, values))
    assert [verdict.passed for verdict in verdicts] == [True, True]  # both saw fresh state and the same random numbers


@pytest.mark.parametrize(
    ("leave", "state"),
    [
        ("fcntl.fcntl(0, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)", "fcntl.fcntl(0, fcntl.F_GETFL) & os.O_APPEND"),
        ("fcntl.fcntl(0, fcntl.F_SETFL, os.O_RDWR | os.O_NONBLOCK)", "fcntl.fcntl(0, fcntl.F_GETFL) & os.O_NONBLOCK"),
        ("os.utime(0)", "os.fstat(0).st_mtime"),
        ("os.utime(1)", "os.fstat(2).st_atime"),
    ],
)
def test_nothing_leaks_through_a_shared_descriptor(sandbox: Sandbox, leave: str, state: str) -> None:
    """All children of a fork server share its open /dev/null."""
    look = f"import fcntl, os\ndef f(x): raise KeyError({state})"
    before = function(sandbox, look)
    assert before.why.startswith("raised KeyError")
    function(sandbox, f"import fcntl, os\ndef f(x): {leave}")
    assert function(sandbox, look).why == before.why


def test_no_process_outlives_the_trainer() -> None:
    """A trainer killed during an endless solution takes its judges, fork servers and children with it."""
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from rewards.sandbox import Sandbox
from rewards.limits import Limits
sandbox = Sandbox(2, Limits(cpu_s=1, wall_s=120.0))
print("up", flush=True)
sandbox.run([{{"source": "import time\\ndef f(x): time.sleep(1000)", "entry": "f", "tests": "def check(c): c(1)"}}] * 2)
"""
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "up\n"
    time.sleep(0.5)
    descendants = psutil.Process(trainer.pid).children(recursive=True)
    assert len(descendants) >= 6  # two judges, two fork servers, two children
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    assert not psutil.wait_procs(descendants, timeout=10)[1]


def test_many_at_once_keep_their_order(code_reward: CodeReward) -> None:
    sources = [f"def f(x): return x * x + {i % 3}" for i in range(24)]
    verdicts = code_reward.run([{"source": source, "entry": "f", "tests": CHECK} for source in sources])
    assert [verdict.passed for verdict in verdicts] == [i % 3 == 0 for i in range(24)]


def test_no_solution_runs_unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SandboxError, match="a process could not be confined"):
        Sandbox(1, Limits(memory_mb=1 << 60))
    monkeypatch.setattr(sandbox_module.platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxError, match="needs Linux on x86_64, and this machine is riscv64"):
        Sandbox(1, LIMITS)


# The kernel charges a whole tick to the process that runs at the tick. This code finds the phase of the ticks (250 Hz)
# by a timer that counts charged time, and then sleeps over every tick.
DODGE = """
import signal, time
PERIOD = 4_000_000
def compute(offset, cpu_s):
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        phase = (time.monotonic_ns() - offset) % PERIOD
        if phase > 0.72 * PERIOD:
            time.sleep((1.05 * PERIOD - phase) * 1e-9)
        else:
            for _ in range(50): pass
def charged(offset):
    before = signal.getitimer(signal.ITIMER_PROF)[0]
    compute(offset, 0.02)
    return before - signal.getitimer(signal.ITIMER_PROF)[0]
signal.setitimer(signal.ITIMER_PROF, 1000)
offset = min((PERIOD * k // 10 for k in range(10)), key=charged)
def f(x):
    compute(offset, SECONDS)
    return x * x
"""


def test_a_dodger_does_not_pass(sandbox: Sandbox) -> None:
    check = "def check(candidate):\n    for x in (2, 3, 4, 5): assert candidate(x) == x * x"
    verdict = function(sandbox, DODGE.replace("SECONDS", "0.4"), check)
    assert (verdict.passed, verdict.why) == (False, "CPU time")
